"""SNOO: an outer Nesterov step around any optimizer, every k of its steps.

    x      the weights that the inner optimizer moves          X, b    outer weights and their momentum
    after every k-th inner step:
        d  = X - x                    pseudo-gradient
        b <- mu b + d
        X <- X - lr_outer (d + mu b)
        x <- X

mu = 0 is Lookahead. Source: Kallusky et al. 2025, arXiv 2510.15830 (SNOO); Zhang et al. 2019, arXiv 1907.08610.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.state import is_dummy_step, local, moment_dtype, parameter_name

OUTER_SETTINGS = {"k": "outer_k", "lr_outer": "outer_lr", "mu": "outer_mu"}
"""Arguments of `SNOO` and their keys in the parameter groups, which no inner optimizer uses."""

OUTER_STATE = ("outer", "outer_momentum", "outer_step")

REPORTS = ("coefficients", "collect_stats", "update_rms", "train", "eval")
"""Methods that an inner optimizer may have, and that are passed on."""


class SNOO(torch.optim.Optimizer):
    """Any optimizer, with a Nesterov step along the displacement of every k of its steps.

        optimizer = SNOO(DanaStarMK4(model.parameters(), lr=1e-3), k=20)

    The parameter groups are the inner optimizer's own, so schedulers work as without it. The state of a parameter is
    the inner one's plus `outer`, `outer_momentum` (float32, or float64 for float64 parameters; sharded as the parameter
    is) and `outer_step`, its count of inner steps; modulo k this is the position within the period. A parameter's outer
    weights start from its value at its first gradient.

    Args:
        inner: the optimizer that makes the steps.
        k: inner steps of a period.
        lr_outer: learning rate of the outer step; 1, with `mu` 0, leaves the inner optimizer unchanged.
        mu: the outer momentum's rate.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    Source: Kallusky et al. 2025, arXiv 2510.15830.
    """

    takes_dtensors: ClassVar[bool] = True
    """Makes outer steps on the local parts of DTensors without a wrapper."""

    def __init__(self, inner: torch.optim.Optimizer, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9):
        if not isinstance(inner, torch.optim.Optimizer):
            raise UserError(f"SNOO: inner is {type(inner).__name__}, must be an optimizer, as in SNOO(AdamW(params))")
        settings = {"outer_k": k, "outer_lr": lr_outer, "outer_mu": mu}
        _check(settings)
        self._set_up(inner, settings)
        for group in inner.param_groups:
            self._add_outer(group)

    def _set_up(self, inner: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
        # Not Optimizer.__init__, which would make groups and state of its own. __setstate__ prepares the hooks.
        self.inner = inner
        self._outer: dict[Tensor, dict[str, Any]] = {}
        self._has_state = False  # it has made a step (a dummy step included) or loaded
        self.__setstate__({"defaults": {**inner.defaults, **settings}, "_warned_capturable_if_run_uncaptured": True})

    def _add_outer(self, group: dict[str, Any]) -> None:
        for key in OUTER_SETTINGS.values():
            group.setdefault(key, self.defaults[key])
        _check(group)
        for p in group["params"]:
            self._outer[p] = _fresh(p)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner optimizer's groups themselves."""
        return self.inner.param_groups

    @property
    def state(self) -> Mapping[Tensor, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Inner and outer state of each parameter, merged; read-only.

        Before the first step, parameters without inner state are left out: checkpoint helpers assume that an optimizer
        with any state has all of it.
        """
        return _MergedState(self.inner.state, self._outer, self._has_state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the inner optimizer; `outer_k`, `outer_lr`, `outer_mu` may be given for them.

        Raises:
            UserError: a setting out of range; nothing has been added then.
        """
        _check({**self.defaults, **param_group})
        before = len(self.inner.param_groups)
        self.inner.add_param_group(param_group)
        for group in self.inner.param_groups[before:]:  # an inner optimizer may split what it is given
            self._add_outer(group)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Make an inner step, and the outer one for the parameters whose period it ends.

        Args:
            closure: evaluates the model again and returns the loss; passed to the inner optimizer.
            found_nonfinite: True skips the step, step counts included. A tensor is read.
        """
        # GradScaler sets this attribute for fused optimizers; the inner one does not receive it.
        found_inf = getattr(self, "found_inf", None)
        if any(flag is not None and bool(flag) for flag in (found_nonfinite, found_inf)):
            return None
        self._has_state = True
        if closure is not None:
            return self._step_with(closure)
        stepped = self._begin()
        loss = self.inner.step()
        self._end(stepped)
        return loss

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        """The closure computes the gradients, so the parameters that take part are known after its first evaluation."""
        stepped: list[tuple[dict[str, Any], Tensor]] = []

        def watched() -> Any:
            loss = closure()
            if not stepped:
                stepped.extend(self._begin())
            return loss

        loss = self.inner.step(watched)
        self._end(stepped)
        return loss

    @torch.no_grad()
    def _begin(self) -> list[tuple[dict[str, Any], Tensor]]:
        """The parameters that take part in this step, with their groups; none in a dummy step."""
        if is_dummy_step(self.param_groups):
            return []
        held = [p for group in self.param_groups for p in group["params"]]
        if len(held) != len(self._outer) or not all(p in self._outer for p in held):
            # Libraries that shard a model replace its parameters.
            self._outer = {p: self._outer.get(p) or _fresh(p) for p in held}
        found = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, p in found:
            state = self._outer[p]
            if not state["outer_step"]:  # weights may have been loaded or moved since construction
                self._outer[p] = state = _fresh(p)
                local(state["outer"]).copy_(local(p))
        return found

    @torch.no_grad()
    def _end(self, stepped: list[tuple[dict[str, Any], Tensor]]) -> None:
        due: dict[tuple[Any, ...], list[Tensor]] = {}
        if stepped:
            torch._foreach_add_([self._outer[p]["outer_step"] for _, p in stepped], 1)
        for group, p in stepped:
            if int(self._outer[p]["outer_step"]) % group["outer_k"] == 0:
                key = (group["outer_lr"], group["outer_mu"], p.device, p.dtype)
                due.setdefault(key, []).append(p)
        for (lr, mu, *_), params in due.items():
            states = [self._follow(p) for p in params]
            outers, momenta = ([local(state[name]) for state in states] for name in OUTER_STATE[:2])
            outer_step([local(p) for p in params], outers, momenta, lr=lr, mu=mu)

    def _follow(self, p: Tensor) -> dict[str, Any]:
        """The outer state of `p`, moved to its device: models may be moved after the optimizer was built."""
        state = self._outer[p]
        for key in ("outer", "outer_momentum"):
            state[key] = state[key].to(device=p.device, dtype=moment_dtype(p))
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with the outer state added. Collective if the inner one's is."""
        saved = self.inner.state_dict()
        keys = [key for group in saved["param_groups"] for key in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        joint = self.state
        state = {
            key: {**saved["state"].get(key, {}), **self._outer[p]}
            for key, p in zip(keys, parameters, strict=True)
            if p in joint
        }
        found: dict[str, Any] = {**saved, "state": state}
        for hook in self._optimizer_state_dict_post_hooks.values():
            found = hook(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore inner and outer state, the position within the period, and every hyper-parameter.

        Raises:
            UserError: saved without SNOO, or from another model; nothing has changed then.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise UserError("SNOO: not an optimizer state_dict (it has no 'state' and 'param_groups')")
        groups, saved_groups = self.param_groups, state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in saved_groups]:
            raise UserError("SNOO: the state_dict has other parameter groups; build it with those of the saved run")
        keys = [key for group in saved_groups for key in group["params"]]
        names = [parameter_name(group, i) for group in groups for i in range(len(group["params"]))]
        parameters = [p for group in groups for p in group["params"]]
        if any(not set(OUTER_SETTINGS.values()) <= set(group) for group in saved_groups):
            raise UserError("SNOO: the state_dict was saved without SNOO; load it into the inner optimizer (.inner)")
        saved = state_dict["state"]
        for p, key, name in zip(parameters, keys, names, strict=True):
            _check_entry(name, p, saved.get(key, {}))
        own = {key: {k: v for k, v in entry.items() if k not in OUTER_STATE} for key, entry in saved.items()}
        self.inner.load_state_dict({**state_dict, "state": {key: entry for key, entry in own.items() if entry}})
        self._has_state = True
        for p, key in zip(parameters, keys, strict=True):
            state = self._outer[p] = _fresh(p)
            for name in OUTER_STATE if saved.get(key) else ():
                local(state[name]).copy_(local(torch.as_tensor(saved[key][name])))

    def __getattr__(self, name: str) -> Any:
        if name in REPORTS:
            return getattr(self.inner, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"inner": self.inner, "defaults": self.defaults, "_outer": self._outer, "_has_state": self._has_state}

    def __repr__(self) -> str:
        outer = ", ".join(f"{name}={self.defaults[key]}" for name, key in OUTER_SETTINGS.items())
        return f"SNOO({type(self.inner).__name__}, {outer})"


def outer_step(weights: list[Tensor], outers: list[Tensor], momenta: list[Tensor], *, lr: float, mu: float) -> None:
    """SGD with Nesterov momentum on the outer weights, along X - x, in place; then x is set to X.

    Args:
        weights: x, any floating dtype, all alike.
        outers, momenta: X and b, in the dtype of the moments.
    """
    wide = [x.to(outer.dtype) for x, outer in zip(weights, outers, strict=True)]
    d = torch._foreach_sub(outers, wide)
    torch._foreach_mul_(momenta, mu)
    torch._foreach_add_(momenta, d)
    torch._foreach_add_(d, momenta, alpha=mu)
    torch._foreach_add_(outers, d, alpha=-lr)
    for x, outer in zip(weights, outers, strict=True):
        x.copy_(outer)


class _MergedState(Mapping[Tensor, Any]):
    """Inner and outer state of each parameter, merged."""

    def __init__(self, inner: Mapping[Tensor, Any], outer: Mapping[Tensor, Any], complete: bool):
        self._inner, self._outer, self._complete = inner, outer, complete

    def __getitem__(self, p: Tensor) -> dict[str, Any]:
        return {**self._inner.get(p, {}), **self._outer[p]}

    def __iter__(self) -> Iterator[Tensor]:
        return (p for p in self._outer if p in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, p: object) -> bool:
        return p in self._outer and (self._complete or bool(self._inner.get(p)))  # pyright: ignore


def _fresh(p: Tensor) -> dict[str, Any]:
    def zeros() -> Tensor:
        # zeros_like, not zeros: a DTensor parameter has DTensor outer weights.
        return torch.zeros_like(p, dtype=moment_dtype(p), memory_format=torch.preserve_format, requires_grad=False)

    return {"outer": zeros(), "outer_momentum": zeros(), "outer_step": torch.zeros((), dtype=torch.int64)}


def _check(settings: Mapping[str, Any]) -> None:
    k, lr, mu = (settings[key] for key in OUTER_SETTINGS.values())
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UserError(f"SNOO: k is {k!r}, must be a whole number of steps, at least 1")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not (math.isfinite(lr) and lr > 0):
        raise UserError(f"SNOO: lr_outer is {lr!r}, must be finite and positive")
    if isinstance(mu, bool) or not isinstance(mu, int | float) or not 0 <= mu < 1:
        raise UserError(f"SNOO: mu is {mu!r}, must be in [0, 1)")


def _check_entry(name: str, p: Tensor, entry: Mapping[str, Any]) -> None:
    missing = [key for key in OUTER_STATE if entry and key not in entry]
    if missing:
        raise UserError(f"SNOO: the state of {name} lacks {', '.join(missing)}: it was saved without SNOO")
    for key in ("outer", "outer_momentum"):
        if entry and entry[key].shape != p.shape:
            raise UserError(
                f"SNOO: {key} of {name} has shape {tuple(entry[key].shape)} in the state_dict, the parameter"
                f" {tuple(p.shape)}: it was saved from another model"
            )

"""The base class of wrappers: an inner optimizer's groups and state, with outer state of each parameter beside them."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.optimizers.checks import check_changed, check_numbers, is_number
from danalab.optim.settings import plain_settings
from danalab.optim.step.state import is_dummy_step, local, moment_dtype
from danalab.optim.step.state_dict import by_names, check_entry, check_groups, entries

REPORTS = ("coefficients", "collect_stats", "describe", "update_rms", "train", "eval")
"""Methods that an inner optimizer may have, and that are passed on."""

Stepped = list[tuple[dict[str, Any], Tensor]]
"""Parameters that take part in a step, each with its group."""


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one.

    The parameter groups are the inner optimizer's own, so schedulers work as without the wrapper. The state of a
    parameter is the inner one's plus `moments` (float32, or float64 for float64 parameters; sharded as the parameter
    is) and `count`, the number of its inner steps. The first of `moments` starts as the parameter's value at its first
    gradient, the others as zero. A subclass says what is done `before` and `after` an inner step.

    Args:
        inner: the optimizer that makes the steps.
        settings: by their keys in the parameter groups.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    """

    takes_dtensors: ClassVar[bool] = True
    """Works on the local parts of DTensors without an adapter."""
    keys: ClassVar[Mapping[str, str]]
    """Arguments of the constructor -> keys in the parameter groups, which no inner optimizer uses."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Further keys that every group must have."""
    moments: ClassVar[tuple[str, ...]]
    count: ClassVar[str]

    def __init__(self, inner: torch.optim.Optimizer, settings: dict[str, Any]):
        if not isinstance(inner, torch.optim.Optimizer):
            raise UserError(f"{self.name}: inner is {type(inner).__name__}; it must be an optimizer: AdamW(params)")
        settings = plain_settings(settings)
        self.check(settings)
        # Not Optimizer.__init__, which would make groups and state of its own. __setstate__ prepares the hooks.
        self.inner = inner
        self._outer: dict[Tensor, dict[str, Any]] = {}
        self._has_state = False  # it has made a step (a dummy step included) or loaded
        self.__setstate__({"defaults": {**inner.defaults, **settings}, "_warned_capturable_if_run_uncaptured": True})
        for group in inner.param_groups:
            self._add_outer(group)

    @property
    def name(self) -> str:
        return type(self).__name__

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings out of range."""
        raise NotImplementedError

    def before(self, stepped: Stepped) -> None:
        """Called before the inner step, with the gradients there; the counts are those of earlier steps."""

    def after(self, stepped: Stepped) -> None:
        """Called after the inner step; the counts include it."""

    def _add_outer(self, group: dict[str, Any]) -> None:
        for key in self.keys.values():
            group.setdefault(key, self.defaults[key])
        self.check(group)
        self._outer |= {p: self._fresh(p) for p in group["params"] if p.requires_grad}

    def _fresh(self, p: Tensor) -> dict[str, Any]:
        def zeros() -> Tensor:
            # zeros_like, not zeros: a DTensor parameter has DTensor moments.
            return torch.zeros_like(p, dtype=moment_dtype(p), memory_format=torch.preserve_format, requires_grad=False)

        return {
            **{name: zeros() for name in self.moments},
            self.count: torch.zeros((), dtype=torch.int64, device="cpu"),
        }

    def check_groups(self) -> None:
        """As of `RuleOptimizer`: before a step changes anything, the inner one's settings, too."""
        own = (*self.keys.values(), *self.needs)
        check_changed(self, self.name, self.param_groups, lambda: ({}, own), self.check)
        getattr(self.inner, "check_groups", lambda: None)()

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
        """Add parameters to the inner optimizer; the wrapper's own keys may be given for them.

        UserError: a setting out of range; nothing has been added then.
        """
        self.check({**self.defaults, **plain_settings(param_group)})
        before = len(self.inner.param_groups)
        self.inner.add_param_group(param_group)
        for group in self.inner.param_groups[before:]:  # an inner optimizer may split what it is given
            self._add_outer(group)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Make an inner step (it gets the `closure`), and what the wrapper adds to it.

        `found_nonfinite` True skips the step, step counts included. A tensor is read.
        """
        # GradScaler sets this attribute for fused optimizers; the inner one does not receive it.
        found_inf = getattr(self, "found_inf", None)
        if any(flag is not None and bool(flag) for flag in (found_nonfinite, found_inf)):
            return None
        self.check_groups()
        self._has_state = True
        stepped: Stepped = [] if closure is not None else self._begin()

        def watched() -> Any:
            assert closure is not None
            loss = closure()  # it computes the gradients: before, the parameters that take part are not known
            if not stepped:
                stepped.extend(self._begin())
            return loss

        loss = self.inner.step() if closure is None else self.inner.step(watched)
        self._end(stepped)
        return loss

    @torch.no_grad()
    def _begin(self) -> Stepped:
        """The parameters that take part in this step; none in a dummy step."""
        if is_dummy_step(self.param_groups):
            return []
        held = [p for group in self.param_groups for p in group["params"] if p.requires_grad or p in self._outer]
        if len(held) != len(self._outer) or not all(p in self._outer for p in held):
            # Libraries that shard a model replace its parameters; frozen ones may have been unfrozen.
            self._outer = {p: self._outer.get(p) or self._fresh(p) for p in held}
        stepped = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, p in stepped:
            state = self._outer[p]
            if not state[self.count]:  # weights may have been loaded or moved since construction
                self._outer[p] = state = self._fresh(p)
                local(state[self.moments[0]]).copy_(local(p))
        self.before(stepped)
        return stepped

    @torch.no_grad()
    def _end(self, stepped: Stepped) -> None:
        if stepped:
            torch._foreach_add_([self._outer[p][self.count] for _, p in stepped], 1)
        self.after(stepped)

    def outer_state(self, p: Tensor) -> dict[str, Any]:
        """The outer state of `p`, moved to its device: models may be moved after the optimizer was built."""
        state = self._outer[p]
        for key in self.moments:
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
        held = [(key, p) for key, p in zip(keys, parameters, strict=True) if p in joint]
        state = {key: {**saved["state"].get(key, {}), **self._outer[p]} for key, p in held}
        joined: dict[str, Any] = {**saved, "state": state}
        for hook in self._optimizer_state_dict_post_hooks.values():
            joined = hook(self, joined) or joined
        return joined

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore inner and outer state, the count of steps, and every hyper-parameter.

        UserError, with nothing changed: saved without the wrapper, or from another model.
        """
        state_dict = by_names(self.name, self.param_groups, state_dict)
        check_groups(self.name, self.param_groups, state_dict)
        if any(not set(self.keys.values()) <= set(group) for group in state_dict["param_groups"]):
            raise UserError(f"{self.name}: the state_dict was saved without {self.name}; load it into .inner")
        saved, own = state_dict["state"], (*self.moments, self.count)
        held = list(entries(self.param_groups, state_dict))
        for name, p, entry in held:
            if entry:
                form = dict.fromkeys(self.moments, p) | {self.count: None}
                check_entry(self.name, name, p, {k: v for k, v in entry.items() if k in own}, form)
        rest = {key: {k: v for k, v in entry.items() if k not in own} for key, entry in saved.items()}
        self.inner.load_state_dict({**state_dict, "state": {key: entry for key, entry in rest.items() if entry}})
        self._has_state = True
        for _, p, entry in held:
            if not entry and not p.requires_grad:
                continue
            state = self._outer[p] = self._fresh(p)
            for name in own if entry else ():
                local(state[name]).copy_(local(torch.as_tensor(entry[name])))

    def __getattr__(self, name: str) -> Any:
        if name in REPORTS:
            return getattr(self.inner, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"inner": self.inner, "defaults": self.defaults, "_outer": self._outer, "_has_state": self._has_state}

    def __repr__(self) -> str:
        outer = ", ".join(f"{name}={self.defaults[key]}" for name, key in self.keys.items())
        return f"{self.name}({', '.join(filter(None, (type(self.inner).__name__, outer)))})"


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


class SNOO(Wrapper):
    """Any optimizer, with a Nesterov step along the displacement of every k of its steps.

        optimizer = SNOO(DanaStarMK4(model.parameters(), lr=1e-3), k=20)

    The outer state of a parameter is `outer`, `outer_momentum` and `outer_step`; `outer_step` modulo k is the position
    within the period.

    Args:
        inner: the optimizer that makes the steps.
        k: inner steps of a period.
        lr_outer: learning rate of the outer step; 1, with `mu` 0, leaves the inner optimizer unchanged.
        mu: the outer momentum's rate.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    Source: Kallusky et al. 2025, arXiv 2510.15830.
    """

    keys: ClassVar = {"k": "outer_k", "lr_outer": "outer_lr", "mu": "outer_mu"}
    moments = ("outer", "outer_momentum")
    count = "outer_step"

    def __init__(self, inner: torch.optim.Optimizer, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9):
        super().__init__(inner, {"outer_k": k, "outer_lr": lr_outer, "outer_mu": mu})

    def check(self, settings: Mapping[str, Any]) -> None:
        k, lr, mu = (settings[key] for key in self.keys.values())
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UserError(f"SNOO: k is {k!r}; it must be a whole number of steps, at least 1")
        if not is_number(lr) or not (math.isfinite(lr) and lr > 0):
            raise UserError(f"SNOO: lr_outer is {lr!r}; it must be finite and positive")
        if not is_number(mu) or not 0 <= mu < 1:
            raise UserError(f"SNOO: mu is {mu!r}; it must be in [0, 1)")

    def after(self, stepped: Stepped) -> None:
        due: dict[tuple[Any, ...], list[Tensor]] = {}
        for group, p in stepped:
            if int(self._outer[p]["outer_step"]) % group["outer_k"] == 0:
                key = (group["outer_lr"], group["outer_mu"], p.device, p.dtype)
                due.setdefault(key, []).append(p)
        for (lr, mu, *_), params in due.items():
            states = [self.outer_state(p) for p in params]
            outers, momenta = ([local(state[name]) for state in states] for name in self.moments)
            outer_step([local(p) for p in params], outers, momenta, lr=lr, mu=mu)


def outer_step(weights: list[Tensor], outers: list[Tensor], momenta: list[Tensor], *, lr: float, mu: float) -> None:
    """SGD with Nesterov momentum on the outer weights X, along X - x, in place; then x (of any dtype) is set to X."""
    wide = [x.to(outer.dtype) for x, outer in zip(weights, outers, strict=True)]
    d = torch._foreach_sub(outers, wide)
    torch._foreach_mul_(momenta, mu)
    torch._foreach_add_(momenta, d)
    torch._foreach_add_(d, momenta, alpha=mu)
    torch._foreach_add_(outers, d, alpha=-lr)
    for x, outer in zip(weights, outers, strict=True):
        x.copy_(outer)


class SODA(Wrapper):
    """Any optimizer, with weights that are pulled to their initial values by 1 / (k + offset) in its step k = 0, 1, ...

        optimizer = SODA(Muon(model, lr=0.02))

    The inner step must not depend on the weights themselves, only on gradients: its weight decay has to be 0. The outer
    state of a parameter is `initial`, its value at its first gradient, and `soda_step`.

    Args:
        inner: the optimizer that makes the steps, without weight decay.
        offset: a larger one makes the first pulls weaker.
    Raises:
        UserError: `inner` is no optimizer or has weight decay, or the offset is below 1.
    Source: Pethick et al. 2026, arXiv 2605.11172.
    """

    keys: ClassVar = {"offset": "soda_offset"}
    moments = ("initial",)
    count = "soda_step"

    def __init__(self, inner: torch.optim.Optimizer, *, offset: float = 2.0):
        super().__init__(inner, {"soda_offset": offset})

    def check(self, settings: Mapping[str, Any]) -> None:
        offset = settings["soda_offset"]
        if not is_number(offset) or not 1 <= offset < float("inf"):
            raise UserError(f"SODA: offset is {offset!r}; it must be finite and at least 1")
        if settings.get("weight_decay"):
            raise UserError(f"SODA: weight_decay is {settings['weight_decay']}; it must be 0 beside SODA's own pull")

    def before(self, stepped: Stepped) -> None:
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for group, p in stepped:
            pull = 1 / (int(self._outer[p]["soda_step"]) + group["soda_offset"])
            alike.setdefault((pull, p.device, p.dtype), []).append(p)
        for (pull, *_), params in alike.items():
            weights = [local(p) for p in params]
            initial = [local(self.outer_state(p)["initial"]) for p in params]
            wide = [w.to(w0.dtype) for w, w0 in zip(weights, initial, strict=True)]
            pulled = torch._foreach_lerp(wide, initial, pull)
            for w, new in zip(weights, pulled, strict=True):
                w.copy_(new)


class EMANesterov(Wrapper):
    """Any optimizer, with a look ahead along the moving average of the changes of its weights.

        optimizer = EMANesterov(Muon(model, lr=0.02))

    Between steps the parameters are y, the point ahead, for the next gradient; b uses the learning rate of the last
    step. As the rate falls to 0, y becomes theta. The outer state of a parameter is `weights` (theta), `trend` (m) and
    `ema_step`.

    Args:
        inner: the optimizer that makes the steps.
        gamma: rate of the average of changes.
        beta: distance of the look ahead at the peak learning rate, in steps of m.
    Raises:
        UserError: a setting out of range, or `inner` is no optimizer.
    Source: Yau et al. 2026, arXiv 2605.25395.
    """

    keys: ClassVar = {"gamma": "ema_gamma", "beta": "ema_beta"}
    needs = ("peak_lr",)
    moments = ("weights", "trend")
    count = "ema_step"

    def __init__(self, inner: torch.optim.Optimizer, *, gamma: float = 0.99, beta: float = 0.6):
        super().__init__(inner, {"ema_gamma": gamma, "ema_beta": beta})

    def check(self, settings: Mapping[str, Any]) -> None:
        gamma, beta = (settings[key] for key in self.keys.values())
        if not is_number(gamma) or not 0 <= gamma < 1:
            raise UserError(f"EMANesterov: gamma is {gamma!r}; it must be in [0, 1)")
        if not is_number(beta) or not 0 <= beta < float("inf"):
            raise UserError(f"EMANesterov: beta is {beta!r}; it must be finite and not negative")
        check_numbers("EMANesterov", {key: settings[key] for key in self.needs if key in settings})

    def _add_outer(self, group: dict[str, Any]) -> None:
        group.setdefault("peak_lr", float(group["lr"]))
        super()._add_outer(group)

    def after(self, stepped: Stepped) -> None:
        for group, p in stepped:
            state = self.outer_state(p)
            theta, trend = local(state["weights"]), local(state["trend"])
            new = local(p).to(theta.dtype)
            trend.lerp_(new - theta, 1 - group["ema_gamma"])
            theta.copy_(new)
            ahead = group["ema_beta"] * group["lr"] / group["peak_lr"] if group["peak_lr"] else 0.0
            local(p).copy_(torch.add(theta, trend * ahead))

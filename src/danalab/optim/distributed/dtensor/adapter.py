"""Adapts optimizers of libraries: DTensor parameters, checked input, complete state. `build_adapted` builds them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError, first_line
from danalab.optim.distributed.dtensor import placement
from danalab.optim.distributed.dtensor import state as states
from danalab.optim.optimizers import checks
from danalab.optim.optimizers.groups import (
    apply_factors,
    as_given,
    hyper,
    named_as,
    named_groups,
    refuse_flat_shards,
    split_added,
    take_factors,
    warn_of_guesses,
)
from danalab.optim.settings import plain_settings
from danalab.optim.step.state import is_dummy_step, loss_of, replaced_too_late
from danalab.optim.values import OptimizerSpec, refuse_options

TOUCHING = ("train", "eval", "update_hessian")
"""Methods of inner optimizers that read or write parameters, gradients or state."""


class DTensorAdapter(torch.optim.Optimizer):
    """An optimizer of plain tensors, on parameters that may be sharded.

    The inner optimizer steps on proxies (`dtensor.placement`): the parameters, their local shards, or whole parameters
    at their owners, so that each step equals that of a single process. Sparse gradients, complex parameters, invalid
    numbers and foreign state_dicts are refused with one line, and the step that checkpoint helpers take with zero
    gradients and learning rate changes nothing.

    Other attributes (`train`, `eval`, `coefficients`, ...) are those of the inner optimizer.

    Raises:
        UserError: the optimizer refuses its arguments, or is not exact on sharded parameters.
    """

    takes_dtensors = True
    by_kinds = False
    """As of `RuleOptimizer`."""

    def __init__(self, spec: OptimizerSpec, params: Iterable[Any], lr: Any, settings: dict[str, Any]):
        self.spec = spec
        self._places: list[placement.Plain] = []
        self._names: list[str] = []
        self._stepped: set[int] = set()
        self._awake = False  # it has state: from a step, a dummy step, or a loaded state_dict
        self._built = False
        groups = named_groups(spec.name, params)
        inner_groups = self._place(groups)
        self.inner: torch.optim.Optimizer = checks.in_one_line(
            spec.name, lambda: spec.build(inner_groups, lr=lr, **settings)
        )
        for group in groups:
            self._refuse_settings_of_all(group)
        self._settle()
        pairs = zip(groups, self.inner.param_groups, strict=True)
        outer = [{**hyper(inner), "params": as_given(group["params"])} for group, inner in pairs]
        super().__init__(outer, self.inner.defaults)
        self._built = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "inner" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        attribute = getattr(self.inner, name)
        if name not in TOUCHING:
            return attribute

        @wraps(attribute)
        def touching(*args: Any, **kwargs: Any) -> Any:
            self._follow_replaced()
            for i in range(len(self._places)):
                if i not in self._stepped:
                    self._forget(i)  # state of a dummy step must not be used
            with torch.no_grad(), self._gathered():
                return attribute(*args, **kwargs)

        return touching

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _unfilled, (type(self).__name__,), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        # All attributes: torch copies only groups and state, but libraries keep more.
        inner = (type(self.inner), _without_patches(self.inner))
        return {**_without_patches(self), "inner": inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cls, attributes = state["inner"]
        inner = cls.__new__(cls)
        inner.__dict__.update(attributes)
        self.__dict__.update({**state, "inner": inner})
        for optimizer in (inner, self):
            optimizer._patch_step_function()

    def __repr__(self) -> str:
        return f"DTensorAdapter({self.inner!r})"

    def check_groups(self) -> None:
        """As of `RuleOptimizer`."""
        checks.check_changed(self, self.spec.name, self._groups, lambda: (self.spec.settings, ()))

    # ---- groups ----

    @property
    def _groups(self) -> list[dict[str, Any]]:
        """The groups, each once: users may have put one into `param_groups` again."""
        return list({id(group): group for group in self.param_groups}.values())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own settings; missing ones are those given at construction.

        UserError: a setting out of range, or a parameter that cannot be optimized.
        """
        if not self._built:
            super().add_param_group(param_group)
            return
        if self.spec.by_kind:  # libraries split groups only in their constructors
            raise UserError(f"{self.spec.name}: groups cannot be added later; give all parameters at construction")
        if self.by_kinds and not {"weight_decay", "omega"} & set(param_group):
            for part in split_added(self.spec.name, param_group):
                self.add_param_group({"weight_decay": self.inner.defaults.get("weight_decay", 0.0), **part})
            return
        [group] = named_groups(self.spec.name, [plain_settings(param_group)])
        checks.check_parameters(self.spec.name, [group])
        checks.check_numbers_of(self.spec.name, self.spec.settings, group)
        group["params"] = named_as(self.param_groups, group["params"])
        [group] = named_groups(self.spec.name, [group])
        self._refuse_settings_of_all(group)
        [inner_group] = self._place([group])
        checks.in_one_line(self.spec.name, lambda: self.inner.add_param_group(inner_group))
        self._settle()
        super().add_param_group({**hyper(self.inner.param_groups[-1]), "params": as_given(group["params"])})

    def _refuse_settings_of_all(self, group: dict[str, Any]) -> None:
        """Refuse settings in a group that the library only takes for the whole optimizer."""
        if self.spec.by_kind:  # these have different defaults for each kind of group
            return
        for key in group:
            if key in self.spec.settings and key not in self.inner.defaults:
                raise UserError(f"{self.spec.name}: {key} is one for all groups; give it to the optimizer itself")

    def _place(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups of the inner optimizer, with a proxy for each parameter."""
        places = placement.place_parameters(self.spec, [p for group in groups for _, p in group["params"]])
        self._places += places
        self._names += [name for group in groups for name, _ in group["params"]]
        each = iter(places)
        placed = []
        for group in groups:
            proxies = [place.proxy for place in (next(each) for _ in group["params"])]
            placed.append({**group, "params": [q for q in proxies if q is not None]})
        return placed

    def _follow_replaced(self) -> None:
        """Renew the proxies if a library has replaced the parameters by sharded ones, before any step with state."""
        held = [p for group in self._groups for p in group["params"]]
        if len(held) == len(self._places) and all(p is place.p for p, place in zip(held, self._places, strict=True)):
            return
        if self._stepped:
            raise UserError(replaced_too_late(self.spec.name))
        names = iter(self._names if len(self._names) == len(held) else [""] * len(held))
        groups = [{"params": [(next(names), p) for p in group["params"]]} for group in self._groups]
        self._places, self._names = [], []
        for inner, placed in zip(self.inner.param_groups, self._place(groups), strict=True):
            inner["params"] = placed["params"]
        self.inner.state.clear()
        self._settle()

    def name_parameters(self, names: Sequence[str]) -> None:
        """Set the parameters' names in messages, in the order of the groups."""
        self._names = list(names)

    def _settle(self) -> None:
        """Give the process groups to an optimizer whose statistics are sums over all coordinates; release proxies."""
        for place in self._places:
            if isinstance(place, placement.OwnedFull):
                place.release()
        if self.spec.sums_over_ranks:
            parts = [place for place in self._places if isinstance(place, placement.LocalShard)]
            self.inner.sum_over = {place.proxy: place.process_groups() for place in parts}  # pyright: ignore

    # ---- the step ----

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Apply the gradients; `found_nonfinite` True leaves all as it is. Collective where parameters are sharded.

        `closure` evaluates the model again and returns the loss. UserError: a sparse gradient.
        """
        if found_nonfinite is not None and bool(found_nonfinite):
            return None
        self.check_groups()
        self._follow_replaced()
        if self.spec.closure:
            with self._gathered():
                return self.inner.step(closure)
        loss = loss_of(closure)
        checks.check_gradients(self.spec.name, [place.p for place in self._places], self._names)
        if is_dummy_step(self.param_groups):
            self._awake = True
            self._complete()
            return loss
        moving = [i for i, place in enumerate(self._places) if place.p.grad is not None]
        for i in set(moving) - self._stepped:
            self._forget(i)  # made by a dummy step; the optimizer creates its own from this gradient
        self._stepped.update(moving)
        self._awake = True
        with self._gathered(moving):
            try:
                self.inner.step()
            except torch.linalg.LinAlgError as error:
                raise UserError(f"{self.spec.name}: a decomposition failed; a gradient may be not finite") from error
            except (ArithmeticError, KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise UserError(
                    f"{self.spec.name}: a parameter group has a wrong value or lacks one ({reason})"
                ) from error
        if not self.spec.elementwise:
            states.make_contiguous(self.inner, [self._places[i] for i in moving])
        return loss

    @contextmanager
    def _gathered(self, indices: Sequence[int] | None = None) -> Iterator[None]:
        """Gather proxies and copy the settings to the inner optimizer; afterwards copy both back."""
        places = self._places if indices is None else [self._places[i] for i in indices]
        for inner, outer in zip(self.inner.param_groups, self._groups, strict=True):
            inner.update(hyper(outer))
        in_rows, others = placement.by_rows(places)
        for place in others:
            place.gather()
        exchanges = [placement.gather_rows(alike) for alike in in_rows]
        try:
            yield
        finally:
            for alike, exchange in zip(in_rows, exchanges, strict=True):
                placement.scatter_rows(alike, exchange)
            for place in others:
                place.scatter()
        for inner, outer in zip(self.inner.param_groups, self._groups, strict=True):
            outer.update(hyper(inner))

    # ---- state ----

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """State of each parameter, with DTensors where the parameter is one; empty where another rank owns it.

        It is empty before the first step, and created at each access: change tensors in it, not the dict.
        """
        states_of: dict[Tensor, Any] = defaultdict(dict)
        if self._awake:
            for place in self._places:
                own = states.own_state(self.inner, place)
                states_of[place.p] = (
                    own if isinstance(place, placement.OwnedFull) else placement.map_leaves(own, place.to_global)
                )
        return states_of

    @state.setter
    def state(self, _: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ignored: torch's constructor sets it."""

    def _forget(self, i: int) -> None:
        proxy = self._places[i].proxy
        if proxy is not None:
            self.inner.state.pop(proxy, None)

    def _complete(self) -> None:
        """Create state for parameters that have taken no step, unless they are frozen: checkpoints need its shapes."""
        waiting = [place for i, place in enumerate(self._places) if i not in self._stepped and place.p.requires_grad]
        states.make_state(self.inner, waiting)
        for inner, outer in zip(self.inner.param_groups, self._groups, strict=True):
            for key, value in hyper(inner).items():
                outer.setdefault(key, value)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with DTensors for sharded state. Collective where parameters are owned.

        Each group has the optimizer's name in `made_by`, and in `unstepped` the indices of parameters that have taken
        no step: their state has the right shape and no meaning.
        """
        self._follow_replaced()
        self._awake = True
        self._complete()
        saved = states.saved_form(self)
        for hook in self._optimizer_state_dict_post_hooks.values():
            saved = hook(self, saved) or saved
        return saved

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state and hyper-parameters, from any layout; the implementation (foreach, ...) stays.

        UserError, with nothing changed: saved by another optimizer or from another model.
        """
        self._follow_replaced()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        stepped = states.load(self, state_dict)
        self._stepped = stepped
        self._awake = self._awake or bool(stepped)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


def _without_patches(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's attributes, without the `step` that schedulers replace."""
    return {key: value for key, value in vars(optimizer).items() if key != "step"}


@cache
def _named(name: str) -> type[DTensorAdapter]:
    """The adapter under the name of its inner optimizer, so that `type(optimizer)` says what it is."""
    return type(name, (DTensorAdapter,), {})


def _unfilled(name: str) -> DTensorAdapter:
    """For copies and pickles, which then set its state."""
    return object.__new__(_named(name))


def build_adapted(
    spec: OptimizerSpec, params: Iterable[Any], lr: Any, settings: dict[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer of an entry, in a `DTensorAdapter` unless its class takes DTensors.

    A group's `lr_factor` multiplies its learning rate, its `eps_factor` its eps (`apply_factors`). UserError: see
    `DTensorAdapter`; or a factor for an optimizer with a single learning rate.
    """
    lr, settings = plain_settings({"lr": lr})["lr"], plain_settings(settings)
    groups = [plain_settings(group) for group in parameter_groups(spec, spec.name, params)]
    factors = [take_factors(group) for group in groups]
    if spec.one_rate and len({rate for rate, _ in factors}) > 1:
        raise UserError(f"{spec.name}: has one learning rate for all parameters; leave lr_factor out of the groups")
    optimizer = _build(spec, groups, lr, settings)
    if any(each != (1.0, 1.0) for each in factors):
        for group, each in zip(optimizer.param_groups, factors, strict=True):
            apply_factors(group, *each, independent=spec.decay == "independent")
    return optimizer


def parameter_groups(spec: OptimizerSpec, owner: str, params: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), split as the optimizer's class splits them."""
    groups = named_groups(owner, params)
    split = getattr(spec.build, "split_group", None)
    if split is None:
        return groups
    warn_of_guesses(owner, groups)
    return [part for group in groups for part in split(owner, group)]


def _build(
    spec: OptimizerSpec, groups: list[dict[str, Any]], lr: Any, settings: dict[str, Any]
) -> torch.optim.Optimizer:
    checks.check_parameters(spec.name, groups)
    if not spec.elementwise:
        refuse_flat_shards(spec.name, (p for group in groups for _, p in group["params"]))
    for given in ({"lr": lr, **settings}, *groups):
        checks.check_numbers_of(spec.name, spec.settings, given)
    for group in groups if spec.by_kind else ():
        refuse_options(spec.name, group, spec.settings)
    native = [{**group, "params": as_given(group["params"])} for group in groups]
    if getattr(spec.build, "takes_dtensors", False):
        return checks.in_one_line(spec.name, lambda: spec.build(native, lr=lr, **settings))
    optimizer = DTensorAdapter(spec, groups, lr, settings)
    optimizer.__class__ = _named(type(optimizer.inner).__name__)
    if getattr(optimizer.inner, "takes_dtensors", False):  # a function that builds a class of ours
        return checks.in_one_line(spec.name, lambda: spec.build(native, lr=lr, **settings))
    return optimizer

"""State of an optimizer that steps on proxies, in the form that users and checkpoints see: by parameters.

State that no step has made yet has the form that a dummy step gives it (`make_state`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from danalab.optim.distributed.dtensor.layout import gather_objects
from danalab.optim.distributed.dtensor.placement import OwnedFull, Plain, as_kept, as_tensors, map_leaves, outline_of
from danalab.optim.optimizers.checks import check_numbers_of
from danalab.optim.optimizers.groups import called, hyper
from danalab.optim.settings import plain_settings
from danalab.optim.step.state_dict import (
    IMPLEMENTATION,
    by_names,
    check_entry,
    check_groups,
    leaves,
    warn_of_replaced,
)

NOTES = ("unstepped", "made_by")
"""Group keys of a state_dict that are not settings."""


def own_state(inner: torch.optim.Optimizer, place: Plain) -> dict[str, Any]:
    """The state on this rank of a placement's proxy; {} without one."""
    if place.proxy is None or place.proxy not in inner.state:
        return {}
    return dict(inner.state[place.proxy])


def to_global(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> dict[int, Any]:
    """Index of a parameter -> its state, with DTensors where sharded. Collective where parameters are owned."""
    states: dict[int, Any] = {}
    of_owned = _outlines(inner, places)
    for i, place in enumerate(places):
        state = as_tensors(own_state(inner, place))
        if isinstance(place, OwnedFull) and not place.is_mine:
            state = of_owned[i]
        state = map_leaves(state, place.to_global)
        if state:
            states[i] = state
    return states


def saved_form(optimizer: Any) -> dict[str, Any]:
    """The state_dict of a `DTensorAdapter`, whose `state_dict` says what it holds. Collective where parameters are
    owned."""
    groups, number_of = [], {id(place.p): i for i, place in enumerate(optimizer._places)}
    for group in optimizer.param_groups:
        numbers = [number_of[id(p)] for p in group["params"]]
        waiting = [i for i, number in enumerate(numbers) if number not in optimizer._stepped]
        groups.append({**group, "params": numbers, "unstepped": waiting, "made_by": optimizer.spec.name})
    return {"state": to_global(optimizer.inner, optimizer._places), "param_groups": groups}


def make_contiguous(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> None:
    """Store state row by row, as a checkpoint returns it: products of column-major matrices (LAPACK's) differ in the
    last bit."""
    for proxy in (place.proxy for place in places):
        if proxy is not None and proxy in inner.state:
            state = inner.state[proxy]
            if any(isinstance(leaf, Tensor) and not leaf.is_contiguous() for _, leaf in leaves(dict(state))):
                state.update(map_leaves(dict(state), lambda x: x.contiguous() if isinstance(x, Tensor) else x))


def forms(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> list[Any]:
    """Outline of each parameter's state in a state_dict. Collective where parameters are owned."""
    of_owned = _outlines(inner, places)
    outlines = []
    for i, place in enumerate(places):
        if isinstance(place, OwnedFull):
            outlines.append(of_owned[i])
        else:
            outlines.append(outline_of(map_leaves(as_tensors(own_state(inner, place)), place.to_global)))
    return outlines


def _outlines(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> dict[int, Any]:
    """Outlines of the states of owned parameters, from their owners. Collective."""
    owned = [(i, place) for i, place in enumerate(places) if isinstance(place, OwnedFull)]
    outlines: dict[int, Any] = {}
    for mesh in dict.fromkeys(place.mesh for _, place in owned):
        mine = {i: place for i, place in owned if place.mesh == mesh and place.is_mine}
        formed = {i: outline_of(as_tensors(own_state(inner, place))) for i, place in mine.items()}
        for part in gather_objects(formed, mesh):
            outlines.update(part)
    return outlines


@torch.no_grad()
def make_state(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> None:
    """Create state for parameters without any, by a dummy step on ones, one parameter after another.

    Parameters, gradients and settings do not change. The new state is zero, and so are settings that the optimizer adds
    at its first step.
    """
    waiting = [place for place in places if place.proxy is not None and not inner.state.get(place.proxy)]
    if not waiting:
        return
    everything = [q for group in inner.param_groups for q in group["params"]]
    grads = [q.grad for q in everything]
    before = [{key: _copy(value) for key, value in hyper(group).items()} for group in inner.param_groups]
    for q in everything:
        q.grad = None
    try:
        for place in waiting:
            q = place.proxy
            assert q is not None
            data = q.data
            # Ones: with zeros, some optimizers keep a number in place of a tensor.
            q.data = torch.ones(place.shape, dtype=q.dtype, device=q.device)
            q.grad = torch.ones_like(q)
            for group in inner.param_groups:
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
            try:
                inner.step()
                inner.state[q] = map_leaves(dict(inner.state[q]), _zero)  # the initial state of many optimizers
            finally:
                q.data, q.grad = data, None
                for group, settings in zip(inner.param_groups, before, strict=True):
                    new = {key: _zero(value) for key, value in hyper(group).items() if key not in settings}
                    group.update({key: _copy(value) for key, value in settings.items()})
                    group.update(new)
    finally:
        for q, g in zip(everything, grads, strict=True):
            q.grad = g


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _zero(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return type(value)(0) if isinstance(value, (int, float)) else value  # a bool becomes False


def load(optimizer: Any, state_dict: Any) -> set[int]:
    """Restore a `DTensorAdapter` from a state_dict of any layout; returns the parameters that have taken steps."""
    saved, built = check_loadable(optimizer, state_dict), [hyper(group) for group in optimizer.param_groups]
    loaded = [saved["state"].get(key, {}) for group in saved["param_groups"] for key in group["params"]]
    stepped: set[int] = set()
    start = 0
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        stepped |= {start + k for k in range(len(group["params"])) if not _waits(saved, saved_group, k)}
        own = {key: group[key] for key in IMPLEMENTATION if key in group}
        group.update({key: value for key, value in hyper(saved_group).items() if key not in NOTES})
        group.update(own)
        start += len(group["params"])
    warn_of_replaced(optimizer.spec.name, built, optimizer.param_groups)
    inner = optimizer.inner
    for own_group, outer in zip(inner.param_groups, optimizer.param_groups, strict=True):
        own_group.update(hyper(outer))
    for i, (place, state) in enumerate(zip(optimizer._places, loaded, strict=True)):
        new = as_kept(map_leaves(dict(state), place.to_local), own_state(inner, place))
        if place.proxy is not None and i in stepped and new:
            inner.state[place.proxy] = new
        else:
            optimizer._forget(i)
    return stepped


def check_loadable(optimizer: Any, saved: Any) -> Mapping[str, Any]:
    """Check that a state_dict belongs to this optimizer and model; see `DTensorAdapter.load_state_dict`."""
    owner, groups = optimizer.spec.name, optimizer.param_groups
    needed = {key for key in optimizer.inner.defaults if key in groups[0] and key not in IMPLEMENTATION}
    saved = by_names(owner, groups, saved)
    check_groups(owner, groups, saved, needed, maker=owner)
    saved_groups = saved["param_groups"]
    for group in saved_groups:
        check_numbers_of(owner, optimizer.spec.settings, plain_settings(hyper(group)))
    optimizer._complete()
    expected = forms(optimizer.inner, optimizer._places)
    may_be = getattr(optimizer.inner, "optional_state", ())
    positions = [(group, k) for group in saved_groups for k in range(len(group["params"]))]
    for i, (group, k) in enumerate(positions):
        if not _waits(saved, group, k):
            p = optimizer._places[i].p
            entry = saved["state"].get(group["params"][k], {})
            check_entry(owner, called(optimizer._names[i], p), p, entry, expected[i], may_be)
    return saved


def _waits(saved: Mapping[str, Any], group: Mapping[str, Any], k: int) -> bool:
    """Whether parameter k of a group of a state_dict had taken no step; without "unstepped", by its state."""
    if "unstepped" in group:
        return k in group["unstepped"]
    return not saved["state"].get(group["params"][k])

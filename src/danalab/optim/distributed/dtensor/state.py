"""The state of an optimizer that steps on stand-ins, as the outside has it: of the parameters that these stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from danalab.optim.distributed.dtensor.nested import as_tensors, map_leaves, outline_of
from danalab.optim.distributed.dtensor.places import OwnedFull, Plain


def own_state(inner: torch.optim.Optimizer, place: Plain) -> dict[str, Any]:
    """What the optimizer keeps on this rank for a place; {} where it keeps nothing."""
    if place.proxy is None or place.proxy not in inner.state:
        return {}
    return dict(inner.state[place.proxy])


def to_global(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> dict[int, Any]:
    """Number of a place -> its state, with DTensors for what is sharded. Collective where parameters are owned."""
    found: dict[int, Any] = {}
    of_owned = _outlines(inner, places)
    for i, place in enumerate(places):
        state = as_tensors(own_state(inner, place))
        if isinstance(place, OwnedFull) and not place.is_mine:
            state = of_owned[i]
        state = map_leaves(state, place.to_global)
        if state:
            found[i] = state
    return found


def forms(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> list[Any]:
    """Outline of each place's state in a state_dict. Collective where parameters are owned."""
    of_owned = _outlines(inner, places)
    found = []
    for i, place in enumerate(places):
        if isinstance(place, OwnedFull):
            found.append(of_owned[i])
        else:
            found.append(outline_of(map_leaves(as_tensors(own_state(inner, place)), place.to_global)))
    return found


def _outlines(inner: torch.optim.Optimizer, places: Sequence[Plain]) -> dict[int, Any]:
    """Forms of the states of owned parameters, from their owners. Collective."""
    meshes = {place.mesh: None for place in places if isinstance(place, OwnedFull)}
    found: dict[int, Any] = {}
    for mesh in meshes:
        from danalab.optim.distributed.dtensor.layout import gather_objects

        mine = {
            i: outline_of(as_tensors(own_state(inner, place)))
            for i, place in enumerate(places)
            if isinstance(place, OwnedFull) and place.mesh == mesh and place.is_mine
        }
        for part in gather_objects(mine, mesh):
            found.update(part)
    return found

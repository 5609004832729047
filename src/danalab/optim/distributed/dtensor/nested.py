"""Nested optimizer state: tensors, plain values, and lists or dicts of these."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Outline:
    """Shape and dtype of a tensor."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every leaf (all but lists, tuples and dicts)."""
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(item, change) for item in value)
    return change(value)


def as_tensors(value: Any) -> Any:
    """`value` with floats as 0-dim float64 tensors: some libraries keep a value as either."""
    return map_leaves(value, lambda leaf: torch.tensor(leaf, dtype=torch.float64) if type(leaf) is float else leaf)


def as_kept(value: Any, example: Any) -> Any:
    """`value` in the dtypes of `example`: the state of a run may have been saved in others.

    0-dim tensors become floats where the example has floats; others are step counts and keep their dtype.
    """
    if isinstance(value, dict):
        known = example if isinstance(example, dict) else {}
        return {key: as_kept(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        alike = isinstance(example, (list, tuple)) and len(example) == len(value)
        known = example if alike else [None] * len(value)
        return type(value)(as_kept(item, other) for item, other in zip(value, known, strict=True))
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:
        return value.item() if isinstance(example, float) else value
    is_moment = isinstance(example, Tensor) and value.is_floating_point() and example.is_floating_point()
    return value.to(example.dtype) if is_moment else value


def outline_of(value: Any) -> Any:
    """`value` with `Outline`s in place of tensors."""
    return map_leaves(value, lambda leaf: Outline(leaf) if isinstance(leaf, Tensor) else leaf)

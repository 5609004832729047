"""Parameters as a caller gives them, in one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from danalab.errors import UserError

OWN_KEYS = ("params", "param_names")
"""Keys of a group that are no settings."""


def named_groups(owner: str, given: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), the name "" where there is none.

    Args:
        owner: the optimizer, for messages.
        given: parameters, named parameters or groups of them.
    Raises:
        UserError: something else is among them.
    """
    if isinstance(given, Tensor):
        raise UserError(f"{owner}: a single tensor was given, must be a list of parameters")
    entries = list(given)
    groups = entries if entries and isinstance(entries[0], Mapping) else [{"params": entries}]
    found = []
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group:
            raise UserError(f"{owner}: a parameter group is a {type(group).__name__}, must be a dict with 'params'")
        params = group["params"]
        pairs = [_pair(owner, entry) for entry in ([params] if isinstance(params, Tensor) else params)]
        found.append({**group, "params": pairs})
    return found


def require_some(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuse groups without any parameter.

    Raises:
        UserError: there is none.
    """
    if not any(group["params"] for group in groups):
        raise UserError(f"{owner}: no parameters were given, there is nothing to optimize")


def called(name: str, p: Tensor) -> str:
    """What to call a parameter in a message."""
    return f"parameter '{name}'" if name else f"a parameter of shape {tuple(p.shape)}"


def hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group, without its parameters."""
    return {key: value for key, value in group.items() if key not in OWN_KEYS}


def as_given(pairs: Iterable[tuple[str, Tensor]]) -> list[Any]:
    """(name, parameter) pairs as torch takes them: with names where all have one, else without."""
    pairs = list(pairs)
    return pairs if all(name for name, _ in pairs) else [p for _, p in pairs]


def _pair(owner: str, entry: Any) -> tuple[str, Tensor]:
    name, p = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
    if not isinstance(p, Tensor):
        raise UserError(f"{owner}: cannot optimize a {type(p).__name__}; parameters are tensors")
    return str(name), p

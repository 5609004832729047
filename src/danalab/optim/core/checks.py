"""Checks of what is given to optimizers of libraries, which differ in what they refuse and how they say it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.groups import called
from danalab.optim.core.parse_settings import WANTED, kind_of
from danalab.optim.core.settings import MAY_BE_NONE, is_number, number_of
from danalab.optim.registry.spec import Setting


def in_one_line(owner: str, build: Callable[[], Any]) -> Any:
    """What `build` returns; a library's complaint becomes one line.

    Raises:
        UserError: the library refuses.
    """
    try:
        return build()
    except UserError:
        raise
    except (ArithmeticError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{owner}: {lines[0]}") from error


def check_numbers_of(owner: str, known: Mapping[str, Setting], given: Mapping[str, Any]) -> None:
    """Refuse settings that no run can mean: of another type, not finite, or negative where the default is not.

    Args:
        known: settings of the optimizer; `lr` is one always.
        given: settings by name; others are passed over.
    Raises:
        UserError: names the setting.
    """
    for name, value in given.items():
        if name == "lr":
            _check_number(owner, name, value, 1e-3)
        elif name in known and not (value is None and (known[name].default is None or name in MAY_BE_NONE)):
            _check_value(owner, name, value, known[name])


def _check_value(owner: str, name: str, value: Any, setting: Setting) -> None:
    kind = kind_of(setting)
    if kind == "numbers":
        own = setting.default if isinstance(setting.default, (tuple, list)) else None
        if not isinstance(value, (tuple, list)) or (own is not None and len(value) != len(own)):
            raise UserError(f"{owner}: {name} is {value!r}, must be {len(own) if own else 'a tuple of'} numbers")
        for number, of_default in zip(value, own or (None,) * len(value), strict=True):
            if number is not None or of_default is not None:
                _check_number(owner, name, number, of_default)
        return
    if kind in ("number", "integer"):
        _check_number(owner, name, value, setting.default)
    if not isinstance(value, _TYPES[kind]):
        raise UserError(f"{owner}: {name} is {value!r}, must be {WANTED[kind]}")


_TYPES: dict[str, Any] = {"number": object, "integer": (int, Tensor), "switch": bool, "word": (str, torch.dtype)}


def _check_number(owner: str, name: str, value: Any, usual: Any) -> None:
    """`value` is a setting or a part of it, `usual` its default."""
    number = number_of(owner, name, value)
    may_be_negative = is_number(usual) and usual < 0
    if number is not None and (not math.isfinite(number) or (number < 0 and not may_be_negative)):
        raise UserError(f"{owner}: {name} is {number}, must be finite and not negative")


def check_parameters(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuse parameters that are not of real floating-point numbers, or that are given twice.

    Args:
        groups: as `named_groups` returns them.
    Raises:
        UserError: names the parameter.
    """
    seen: set[int] = set()
    for group in groups:
        for name, p in group["params"]:
            if not p.dtype.is_floating_point:
                raise UserError(
                    f"{owner}: {called(name, p)} is {p.dtype}; only real floating-point parameters can be optimized"
                )
            if id(p) in seen:
                raise UserError(f"{owner}: {called(name, p)} is given twice")
            seen.add(id(p))


def check_gradients(owner: str, names: Iterable[str], params: Iterable[Tensor]) -> None:
    """Refuse sparse gradients.

    Raises:
        UserError: names the parameter.
    """
    for name, p in zip(names, params, strict=True):
        if p.grad is not None and p.grad.layout != torch.strided:
            raise UserError(
                f"{owner}: {called(name, p)} has a {p.grad.layout} gradient; only dense ones are supported"
                " (nn.Embedding: sparse=False)"
            )

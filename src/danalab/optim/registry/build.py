"""Optimizers by name: `build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=10_000)`.

`optimizer_spec` tells a trainer, and the command line, which settings there are and how weight decay is meant; the
entries themselves are in `danalab.optim.registry.catalogue`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn

from danalab.errors import UserError, nearest
from danalab.optim.core.groups import (
    DECAYED,
    learning_rate_factors,
    named_groups,
    parameter_kinds,
    require_some,
    unwrapped,
)
from danalab.optim.registry.catalogue import entries
from danalab.optim.registry.spec import OptimizerSpec, Setting
from danalab.registry import Registry

__all__ = [
    "OptimizerSpec",
    "Setting",
    "build_optimizer",
    "groups_of",
    "list_optimizers",
    "optimizer_spec",
    "parameter_groups",
    "registered",
]


@cache
def registered() -> Registry[OptimizerSpec]:
    """All optimizers; made when first asked for."""
    registry: Registry[OptimizerSpec] = Registry("optimizer")
    for spec in entries():
        registry.add(spec.name, spec, *spec.aliases)
    return registry


def build_optimizer(
    name: str, model_or_params: nn.Module | Iterable[Any], lr: float = 1e-3, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer `name` for a model or for parameters.

    Args:
        name: see `list_optimizers`; underscores, hyphens and aliases are understood.
        model_or_params: a model is split into two groups, decayed (matrices, heads) and not (embeddings, vectors),
            each with `param_names`, and further ones for what it wants at another learning rate; parameters, named
            parameters or groups are taken as they are.
        lr: peak learning rate.
        settings: hyper-parameters; see `optimizer_spec(name).settings`.
    Returns:
        An optimizer that is right for DTensor parameters too: one of this package, or a library's in a
        `DTensorAdapter` (`danalab.optim.distributed.dtensor.adapter`), whose `inner` is the library's own.
    Raises:
        UserError: unknown name or setting, or a value out of range.
        MissingExtra: the optimizer is a library's that is not installed.
    """
    spec = optimizer_spec(name)
    for setting in settings:
        if setting not in spec.settings:
            have = ", ".join(spec.settings)
            hint = nearest(setting, spec.settings)
            raise UserError(f"optimizer '{spec.name}' has no setting '{setting}'{hint}; it has: {have}")
    groups: Any = groups_of(spec, model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
    from danalab.optim.distributed.dtensor.build import (
        adapted,  # which imports this module when it has something to refuse
    )

    groups = named_groups(spec.name, groups)
    require_some(spec.name, groups)
    return adapted(spec, groups, lr, settings)


def optimizer_spec(name: str) -> OptimizerSpec:
    """What is known of the optimizer `name`.

    Raises:
        UserError: unknown; the message has the nearest spelling and all names.
    """
    return registered().get(name)


def list_optimizers() -> list[str]:
    """Names of all optimizers."""
    return registered().names()


def groups_of(spec: OptimizerSpec, model: nn.Module) -> list[dict[str, Any]]:
    """The groups in which an optimizer takes a model's parameters.

    Those whose learning rate the model wants multiplied by something stand apart, with that as their `lr_factor`.
    """
    groups, factors = (spec.groups or parameter_groups)(model), learning_rate_factors(model)
    if not factors:
        return groups
    found = []
    for group in groups:
        parts: dict[float, list[Any]] = {}
        for name, parameter in group["params"]:
            parts.setdefault(factors.get(name, 1.0), []).append((name, parameter))
        found += [{**group, "params": parts[factor], "lr_factor": factor} for factor in sorted(parts, reverse=True)]
    return found


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of named parameters that require gradients: decayed, and with weight decay 0. Empty ones are left out.

    Raises:
        UserError: no parameter requires gradients.
    """
    kinds = parameter_kinds(model)
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in unwrapped(model).named_parameters():
        if parameter.requires_grad:
            groups[0 if kinds[name] in DECAYED else 1]["params"].append((name, parameter))
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise UserError(f"{type(model).__name__}: no parameter requires gradients, there is nothing to optimize")
    return groups

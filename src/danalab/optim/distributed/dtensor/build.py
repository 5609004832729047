"""Builds the optimizer of a registry entry, wrapped in a `DTensorAdapter` where its class needs one."""

from collections.abc import Iterable
from typing import Any

import torch

from danalab.errors import UserError
from danalab.optim.core.checks import check_numbers_of, check_parameters, in_one_line
from danalab.optim.core.groups import as_given, named_groups
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.registry.spec import OptimizerSpec


def build_adapted(
    spec: OptimizerSpec, params: Iterable[Any], lr: Any, settings: dict[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer of an entry, in a `DTensorAdapter` unless its class takes DTensors.

    A group's `lr_factor` multiplies its learning rate.

    Raises:
        UserError: see `DTensorAdapter`; or a factor for an optimizer with a single learning rate.
    """
    groups = parameter_groups(spec, spec.name, params)
    factors = [group.pop("lr_factor", 1.0) for group in groups]
    if spec.one_rate and len(set(factors)) > 1:
        raise UserError(
            f"{spec.name}: has one learning rate for all parameters, so a group cannot have an lr_factor; "
            "leave it out, or take another optimizer"
        )
    optimizer = _build(spec, groups, lr, settings)
    if any(factor != 1 for factor in factors):
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            for rate in ("lr", "peak_lr"):  # weight decay compares the two
                if rate in group:
                    group[rate] = group[rate] * factor
    return optimizer


def parameter_groups(spec: OptimizerSpec, owner: str, params: Iterable[Any]) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), split as the optimizer's class splits them.

    Args:
        owner: the optimizer, for messages.
    """
    groups = named_groups(owner, params)
    split = getattr(spec.build, "split_group", None)
    return groups if split is None else [part for group in groups for part in split(owner, group)]


def _build(
    spec: OptimizerSpec, groups: list[dict[str, Any]], lr: Any, settings: dict[str, Any]
) -> torch.optim.Optimizer:
    check_parameters(spec.name, groups)
    for given in ({"lr": lr, **settings}, *groups):
        check_numbers_of(spec.name, spec.settings, given)
    native = [{**group, "params": as_given(group["params"])} for group in groups]
    if getattr(spec.build, "takes_dtensors", False):
        return in_one_line(spec.name, lambda: spec.build(native, lr=lr, **settings))
    optimizer = DTensorAdapter(spec, groups, lr, settings)
    if getattr(optimizer.inner, "takes_dtensors", False):  # a function that builds a class of ours
        return in_one_line(spec.name, lambda: spec.build(native, lr=lr, **settings))
    return optimizer

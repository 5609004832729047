"""Optimizers by name: `build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=10_000)`.

`optimizer_spec` gives a trainer and the command line the settings of an optimizer and the meaning of its weight decay;
the entries are in `danalab.optim.registry.catalogue`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn

from danalab.errors import UserError, nearest
from danalab.optim.optimizers.checks import resolve_decay
from danalab.optim.optimizers.groups import named_groups, parameter_groups, require_some, split_by_rate
from danalab.optim.registry.catalogue import entries
from danalab.optim.registry.spec import OptimizerSpec, Setting
from danalab.optim.run_length import DECAY_BOUND
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
    """All optimizers; created on first use."""
    registry: Registry[OptimizerSpec] = Registry("optimizer")
    for spec in entries():
        registry.add(spec.name, spec, *spec.aliases)
    return registry


def build_optimizer(
    name: str, model_or_params: nn.Module | Iterable[Any], lr: float = 1e-3, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer `name` for a model or for parameters.

    Args:
        name: see `list_optimizers`; underscores, hyphens and aliases are accepted.
        model_or_params: a model is split into two groups with `param_names`, decayed (matrices, heads) and not decayed
            (embeddings, vectors), and further ones for parameters with another learning rate; parameters, named
            parameters or groups are taken as they are.
        lr: peak learning rate.
        settings: hyper-parameters; see `optimizer_spec(name).settings`. Every optimizer with weight decay takes `omega`
            and `horizon`; see `translate_decay`.
    Returns:
        An optimizer that also works on DTensor parameters: one of this package, or a library's in a
        `DTensorAdapter` (`danalab.optim.distributed.dtensor.adapter`), whose `inner` is the library's own.
    Raises:
        UserError: unknown name or setting, or a value out of range.
        MissingExtra: the optimizer is a library's that is not installed.
    """
    spec = optimizer_spec(name)
    by_omega = "omega" not in spec.settings and settings.get("omega") is not None
    settings = translate_decay(spec, lr, settings)
    for setting in settings:
        if setting not in spec.settings:
            have = ", ".join(spec.settings)
            hint = nearest(setting, spec.settings)
            raise UserError(f"optimizer '{spec.name}' has no setting '{setting}'{hint}; it has: {have}")
    groups: Any = groups_of(spec, model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
    from danalab.optim.distributed.dtensor.adapter import build_adapted  # it imports this module to name alternatives

    groups = named_groups(spec.name, groups)
    require_some(spec.name, groups)
    for group in groups if by_omega else ():
        if group.get("weight_decay"):
            raise UserError(
                f"optimizer '{spec.name}': a group has weight_decay {group['weight_decay']}, and the optimizer omega;"
                " give one of them: leave weight_decay out of groups that decay (0 is no decay)"
            )
    return build_adapted(spec, groups, lr, settings)


def translate_decay(spec: OptimizerSpec, lr: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with `omega` and `horizon` as the weight decay of an optimizer that has neither: omega / (lr horizon).

    Over a run this decays weights by e^-omega at a constant learning rate; bounded as the decay of the Dana family is,
    by `decay_bound` (0: not at all).
    """
    own = {key: settings.get(key) for key in ("omega", "horizon", "decay_bound") if key not in spec.settings}
    rest = {key: value for key, value in settings.items() if key not in own}
    given = {key for key in own if own[key] is not None}
    if not given:
        return rest
    if "weight_decay" not in spec.settings:
        names = " and ".join(key for key in own if key in given)
        raise UserError(f"optimizer '{spec.name}' has no weight decay, so {names} would do nothing; leave it out")
    if given == {"decay_bound"}:
        raise UserError(f"optimizer '{spec.name}': decay_bound has no effect without omega and horizon; give them, too")
    if not {"omega", "horizon"} <= given:
        raise UserError(f"optimizer '{spec.name}': omega and horizon belong together; give both, or weight_decay")
    decay, _ = resolve_decay(
        spec.name,
        weight_decay=rest.get("weight_decay", 0.0),
        wd_ts=None,
        omega=settings["omega"],
        horizon=settings["horizon"],
    )
    per_rate = decay / 10 / float(lr) if float(lr) > 0 else 0.0  # decay is omega / (horizon / 10)
    bound = DECAY_BOUND if own["decay_bound"] is None else own["decay_bound"]
    return {**rest, "weight_decay": min(per_rate, bound) if bound else per_rate}


def optimizer_spec(name: str) -> OptimizerSpec:
    """The registry's entry of the optimizer `name`.

    Raises:
        UserError: unknown; the message gives the nearest spelling and all names.
    """
    return registered().get(name)


def list_optimizers() -> list[str]:
    """Names of all optimizers."""
    return registered().names()


def groups_of(spec: OptimizerSpec, model: nn.Module) -> list[dict[str, Any]]:
    """The groups into which an optimizer splits a model's parameters; see `split_by_rate`."""
    return split_by_rate((spec.groups or parameter_groups)(model), model)

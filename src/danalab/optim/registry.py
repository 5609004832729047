"""Optimizers by name: `build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=10_000)`.

`optimizer_spec` gives a trainer and the command line the settings of an optimizer and the meaning of its weight decay;
the facts are the rows of `danalab.optim.catalogue`, and an optimizer's module is imported when its spec is asked for.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from danalab.errors import MissingExtra, UserError
from danalab.optim.catalogue import OPTIMIZERS, Row, is_address, own_row
from danalab.optim.optimizers.checks import OMEGA, refuse_two_decays, with_coupled_decay
from danalab.optim.optimizers.groups import named_groups, parameter_groups, require_some, split_by_rate
from danalab.optim.settings import HELP, plain_settings
from danalab.optim.values import (
    OptimizerSpec,
    Setting,
    current_names,
    read_kinds,
    read_value,
    require_known,
    settings_of,
)
from danalab.plugins import load_address
from danalab.registry import Registry

_COUPLED_HELP = {
    "omega": "strength of weight decay over the run, instead of weight_decay: omega / (lr horizon)",
    "horizon": "length of the run [steps], with omega",
    "decay_bound": "largest weight_decay; none = 1 with omega, else no bound; 0 = no bound",
}
"""Help of settings that mean something else where weight decay is multiplied by the learning rate."""


def registered() -> Registry[Row]:
    """All optimizers; `registered().add(name, spec)` adds one."""
    return OPTIMIZERS


def register(name: str, build: Callable[..., torch.optim.Optimizer], **facts: Any) -> None:
    """Add an optimizer of your own, a class or a function that is called as `build(groups, lr=..., **settings)`.

    `facts`: fields of its row in the catalogue, such as `summary`, `decay` or `elementwise`.
    """
    OPTIMIZERS.add(name, _own_spec(replace(own_row(name, build), **facts), build))


def _own_spec(row: Row, build: Callable[..., torch.optim.Optimizer]) -> OptimizerSpec:
    """Of an optimizer outside the package; its settings are the other parameters of its signature."""
    first, *others = inspect.signature(build).parameters
    if "lr" not in others:
        called = getattr(build, "__name__", row.name)
        raise UserError(f"optimizer '{row.name}': it takes no lr; it must be callable as {called}(groups, lr=...)")
    settings = settings_of(build, dict.fromkeys([first, *others], f"setting of {row.name}"))
    settings.pop(first, None)
    return OptimizerSpec(**_facts(row), build=build, settings=settings)


def _facts(row: Row) -> dict[str, Any]:
    return {each.name: getattr(row, each.name) for each in fields(row)}


@cache
def _spec_named(name: str) -> OptimizerSpec:
    row = OPTIMIZERS.get(name)
    facts = _facts(row)
    texts = {"inner": "", **HELP, **(_COUPLED_HELP if row.decay == "coupled" else {}), **row.texts}
    module, _, name = row.path.partition(":")
    if module == "pytorch_optimizer":
        kinds: dict[str, Any] = {"foreach": "switch", "age": "word", "by_kind": "kinds"}
        defaults = row.plain_defaults().items()
        settings = {key: Setting(value, text or HELP[key], kinds.get(key, "")) for key, (value, text) in defaults}
        return OptimizerSpec(**facts, build=partial(_build_of_library, row, settings), settings=settings)
    if module.startswith("rules."):
        module, name = "optimizers.elementwise", row.class_name
    loaded = getattr(import_module(module if module.startswith("torch") else f"danalab.optim.{module}"), name)
    settings = settings_of(loaded, texts, **row.defaults)
    if module.startswith("torch"):
        return OptimizerSpec(**facts, build=partial(_build_of_torch, loaded, row), settings=settings)
    if row.inner:
        inner, own = optimizer_spec(row.inner), {key: value for key, value in settings.items() if key != "inner"}
        left_out = _DECAYS if row.decay == "none" else ()
        settings = {key: value for key, value in inner.settings.items() if key not in left_out} | own
        build: Any = partial(_build_wrapped, loaded, inner, tuple(own))
        build.takes_dtensors = True
        if hasattr(inner.build, "split_group"):
            build.split_group = inner.build.split_group  # pyright: ignore
        return OptimizerSpec(**facts, build=build, settings=settings)
    return OptimizerSpec(**facts, build=loaded, settings=settings)


_DECAYS = (*OMEGA, "weight_decay", "aux_weight_decay", "cautious_decay", "scaled_decay")
"""Settings of inner optimizers that a wrapper without weight decay leaves out."""


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _build_of_torch(optimizer: Any, row: Row, params: Any, lr: float, **settings: Any) -> torch.optim.Optimizer:
    """torch's class with the row's defaults; AdamW has its fused kernel unless `fused` or `foreach` is given, or a
    parameter has gaps (a view of a larger tensor)."""
    settings = {**row.defaults, **settings}
    given = any(settings.get(flag) is not None for flag in ("fused", "foreach")) or settings.get("differentiable")
    if row.name == "adamw" and not given:  # torch's kernel for CPUs takes every tensor for a dense one
        params = list(params)
        each = [p for group in named_groups(row.name, params) for _, p in group["params"]]
        dense = (
            p.is_contiguous() or p.is_contiguous(memory_format=_CHANNELS_LAST.get(p.ndim, torch.contiguous_format))
            for p in each
        )
        settings["fused"] = all(dense)
    return optimizer(params, lr=lr, **settings)


def _build_wrapped(
    wrapper: Any, inner: OptimizerSpec, own: tuple[str, ...], params: Any, lr: float, **settings: Any
) -> torch.optim.Optimizer:
    from danalab.optim.distributed.dtensor.adapter import build_adapted

    outer = {key: settings.pop(key) for key in own if key in settings}
    return wrapper(build_adapted(inner, params, lr, settings), **outer)


def _build_of_library(
    row: Row, known: dict[str, Setting], params: Any, lr: float, **settings: Any
) -> torch.optim.Optimizer:
    try:
        from danalab.optim import pytorch_optimizers
    except ImportError as error:
        raise MissingExtra("pytorch_optimizer", f"optimizer {row.name}") from error
    return pytorch_optimizers.build(row, {name: each.default for name, each in known.items()} | settings, params, lr)


def build_optimizer(
    name: str, model_or_params: nn.Module | Iterable[Any], lr: float | None = None, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer `name` for a model or for parameters.

    Args:
        name: see `list_optimizers`; underscores, hyphens and aliases are accepted.
        model_or_params: a model is split into two groups with `param_names`, decayed (matrices, heads) and not decayed
            (embeddings, vectors), and further ones for parameters with another learning rate; parameters, named
            parameters or groups are taken as they are.
        lr: peak learning rate; None: the default of its class, 1e-3 where it has none.
        settings: hyper-parameters; see `optimizer_spec(name).settings`. Every optimizer with weight decay takes `omega`
            and `horizon`.
    Returns:
        An optimizer that also works on DTensor parameters: one of this package, or a library's in a
        `DTensorAdapter` (`danalab.optim.distributed.dtensor.adapter`), whose `inner` is the library's own.
    Raises:
        UserError: unknown name or setting, or a value out of range.
        MissingExtra: the optimizer is a library's that is not installed.
    """
    spec, settings = optimizer_spec(name), plain_settings(settings)
    if lr is None:
        default = inspect.signature(spec.build).parameters.get("lr")
        lr = 1e-3 if default is None or not isinstance(default.default, float) else default.default
    omega = None if "omega" in spec.settings else settings.get("omega")
    settings = _translate_decay(spec, lr, settings)
    require_known(spec.name, spec.settings, settings)
    groups: Any = model_or_params
    if isinstance(groups, nn.Module):
        groups = groups_of(spec, groups, bool(settings.get("per_head")))
    from danalab.optim.distributed.dtensor.adapter import build_adapted  # it imports this module to name alternatives

    groups = named_groups(spec.name, groups)
    require_some(spec.name, groups)
    for group in groups:
        refuse_two_decays(f"optimizer '{spec.name}'", group, omega)
    optimizer = build_adapted(spec, groups, lr, settings)
    if isinstance(model_or_params, nn.Module):
        for each in (optimizer, getattr(optimizer, "inner", None)):
            if hasattr(each, "by_kinds"):
                each.by_kinds = True  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return optimizer


def _translate_decay(spec: OptimizerSpec, lr: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with omega and horizon as the weight decay of an optimizer that has neither."""
    given = [key for key in OMEGA if key not in spec.settings and settings.get(key) is not None]
    if given and "weight_decay" not in spec.settings:
        names = " and ".join(given)
        raise UserError(f"optimizer '{spec.name}' has no weight decay, so {names} would do nothing; leave it out")
    if given == ["decay_bound"]:
        raise UserError(f"optimizer '{spec.name}': decay_bound has no effect without omega and horizon; give them, too")
    return settings if "omega" in spec.settings else with_coupled_decay(f"optimizer '{spec.name}'", lr, settings)


def optimizer_spec(name: str) -> OptimizerSpec:
    """The spec of the optimizer `name`, or of one outside the package: `FILE.py:NAME` or `module:NAME`.

    UserError: unknown; the message gives the nearest spelling and all names.
    """
    row = OPTIMIZERS.get(name)
    if is_address(name):
        return _own_spec(row, load_address(name))
    return row if isinstance(row, OptimizerSpec) else _spec_named(row.name)


def read_settings(spec: OptimizerSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for `build_optimizer`, in `spec`'s order, from names with hyphens or underscores -> values or text."""
    named = current_names({name.replace("-", "_"): value for name, value in given.items()})
    require_known(spec.name, spec.settings, named)
    known = ((name, setting) for name, setting in spec.settings.items() if name in named)
    settings = {name: read_value(f"{spec.name}: {name}", setting, named[name]) for name, setting in known}
    others = {"lr": None, **{name: setting.default for name, setting in spec.settings.items()}}
    read_kinds(spec.name, settings.get("by_kind"), others)
    return settings


def list_optimizers() -> list[str]:
    """Names of all optimizers."""
    return OPTIMIZERS.names()


def groups_of(spec: OptimizerSpec, model: nn.Module, per_head: bool = False) -> list[dict[str, Any]]:
    """The groups into which an optimizer splits a model's parameters; see `split_by_rate`."""
    if spec.by_kind:
        from danalab.optim.optimizers.matrix.base import model_groups

        return split_by_rate(model_groups(model, per_head), model)
    return split_by_rate(parameter_groups(model), model)

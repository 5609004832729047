"""Optimizers by name, with what each can do as declared data.

`build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=10_000)` is all that a trainer needs; `optimizer_spec`
tells it, and the command line, which settings there are and how weight decay is meant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from danalab.errors import UserError, nearest
from danalab.optim.adamw_decaying_wd import AdamWDecayingWD
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.hybrid import model_groups
from danalab.optim.kinds import DECAYED, parameter_kinds, unwrapped
from danalab.optim.manau import Manau
from danalab.optim.muon import DMuon, Muon
from danalab.registry import Registry


@dataclass(frozen=True)
class Setting:
    """A hyper-parameter that `build_optimizer` takes."""

    default: Any
    help: str


@dataclass(frozen=True)
class OptimizerSpec:
    """What is known of an optimizer before it is built."""

    name: str
    summary: str
    reference: str
    build: Callable[..., torch.optim.Optimizer]
    """(parameter groups, lr, **settings) -> optimizer."""
    settings: dict[str, Setting]
    decay: Literal["independent", "coupled", "none"]
    """Whether weight_decay is multiplied by the schedule factor alone, or by the learning rate."""
    aliases: tuple[str, ...] = ()
    log_time: bool = False
    """Depends on the step count: has `coefficients()`, `collect_stats()` and `update_rms()`."""
    elementwise: bool = True
    """Each coordinate is updated by itself, so any sharding of the parameters will do."""
    fsdp2: bool = True
    """Works on DTensor parameters."""
    train_eval: bool = False
    """Has `train()` and `eval()` that must be called around evaluation."""
    closure: bool = False
    """`step` needs a closure."""
    hessian: bool = False
    """Wants a Hessian estimate now and then."""
    extra: str | None = None
    """Extra that must be installed."""
    groups: Callable[[nn.Module], list[dict[str, Any]]] | None = None
    """Parameter groups of a model; None: `parameter_groups`."""


OPTIMIZERS: Registry[OptimizerSpec] = Registry("optimizer")

HELP = {
    "adamw_lr": "peak learning rate of what is not a matrix; none = 0.15 lr",
    "adamw_weight_decay": "weight decay of what is not a matrix; none = weight_decay",
    "alpha_offset": "added to the damping (1+t)^(1-kappa); 1 = published implementation, 0 = printed formula",
    "amsgrad": "keep the maximum of the second moment",
    "betas": "rates of the first and second moment",
    "capturable": "keep the clock on the device, for CUDA graphs",
    "clipsnr": "bound of the damped momentum's signal-to-noise ratio",
    "dana_momentum": "log-time momentum for matrices",
    "delta": "averages weigh a new gradient by delta/(delta+t)",
    "differentiable": "let gradients flow through the step",
    "eps": "added to the root of the second moment",
    "foreach": "work on lists of parameters",
    "fused": "one compiled pass over memory",
    "gamma3": "scale of the momentum term",
    "horizon": "length of the run [steps], with omega; wd_ts = horizon/10",
    "kappa": "exponent of the damping (1+t)^(1-kappa)",
    "matched_rms": "root mean square of a matrix's update",
    "maximize": "ascend in place of descending",
    "momentum": "rate of the matrices' momentum",
    "nesterov": "add the momentum to the gradient",
    "ns_dtype": "dtype of the orthogonalisation; none = bfloat16 on GPUs, float32 on CPUs",
    "ns_method": "orthogonalisation: newton-schulz or polar-express",
    "ns_steps": "steps of the orthogonalisation",
    "omega": "strength of decaying weight decay omega/(wd_ts+t), in place of weight_decay",
    "stochastic_rounding": "round 16-bit parameters up or down at random",
    "wd_ts": "time scale of the decay of weight decay [steps]; none = constant",
    "weight_decay": "weight decay of matrices and heads",
}


def build_optimizer(
    name: str, model_or_params: nn.Module | Iterable[Any], lr: float = 1e-3, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer `name` for a model or for parameters.

    Args:
        name: see `list_optimizers`; underscores, hyphens and aliases are understood.
        model_or_params: a model is split into two groups, decayed (matrices, heads) and not (embeddings, vectors),
            each with `param_names`; parameters, named parameters or groups are taken as they are.
        lr: peak learning rate.
        settings: hyper-parameters; see `optimizer_spec(name).settings`.
    Raises:
        UserError: unknown name or setting, or a value out of range.
    """
    spec = optimizer_spec(name)
    for setting in settings:
        if setting not in spec.settings:
            have = ", ".join(spec.settings)
            hint = nearest(setting, spec.settings)
            raise UserError(f"optimizer '{spec.name}' has no setting '{setting}'{hint}; it has: {have}")
    groups: Any = groups_of(spec, model_or_params) if isinstance(model_or_params, nn.Module) else model_or_params
    return spec.build(groups, lr=lr, **settings)


def optimizer_spec(name: str) -> OptimizerSpec:
    """What is known of the optimizer `name`.

    Raises:
        UserError: unknown; the message has the nearest spelling and all names.
    """
    return OPTIMIZERS.get(name)


def list_optimizers() -> list[str]:
    """Names of all optimizers."""
    return OPTIMIZERS.names()


def groups_of(spec: OptimizerSpec, model: nn.Module) -> list[dict[str, Any]]:
    """The groups in which an optimizer takes a model's parameters."""
    return (spec.groups or parameter_groups)(model)


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


def settings_of(optimizer: Callable[..., Any], **defaults: Any) -> dict[str, Setting]:
    """The settings of an optimizer class, read off its constructor; `defaults` overrides."""
    found = {}
    for name, parameter in inspect.signature(optimizer).parameters.items():
        if name not in ("params", "lr"):
            found[name] = Setting(defaults.get(name, parameter.default), HELP[name])
    return found


def _adamw(params: Any, lr: float, **settings: Any) -> torch.optim.Optimizer:
    """torch's AdamW with the ladder's defaults; its fused kernel unless told otherwise, on any device that has it."""
    settings = {"weight_decay": 0.0, **settings}
    if not any(settings.get(way) is not None for way in ("fused", "foreach")) and not settings.get("differentiable"):
        settings["fused"] = True
    try:
        return torch.optim.AdamW(params, lr=lr, **settings)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"adamw: {str(error).splitlines()[0]}") from error


def _register(spec: OptimizerSpec) -> None:
    OPTIMIZERS.add(spec.name, spec, *spec.aliases)


_register(
    OptimizerSpec(
        name="adamw",
        summary="Adam with decoupled weight decay (torch's)",
        reference="Loshchilov and Hutter 2019, arXiv 1711.05101",
        build=_adamw,
        settings=settings_of(torch.optim.AdamW, weight_decay=0.0),
        decay="coupled",
    )
)
_register(
    OptimizerSpec(
        name="adamw-decaying-wd",
        summary="AdamW with independent, decaying weight decay",
        reference="arXiv 2602.05298",
        build=AdamWDecayingWD,
        settings=settings_of(AdamWDecayingWD),
        decay="independent",
    )
)
for _name, _class, _summary in (
    ("adana", ADana, "AdamW in logarithmic time, with damped long momentum"),
    ("dana-mk4", DanaMK4, "ADana with its momentum's signal-to-noise ratio clipped"),
    ("dana-star", DanaStar, "ADana with a clock for each coordinate"),
    ("dana-star-mk4", DanaStarMK4, "ADana with both: a clock for each coordinate, and the clip"),
):
    _register(
        OptimizerSpec(
            name=_name,
            summary=_summary,
            reference="arXiv 2602.05298",
            build=_class,
            settings=settings_of(_class),
            decay="independent",
            log_time=True,
        )
    )
for _name, _class, _summary, _reference in (
    ("muon", Muon, "orthogonalised momentum for matrices, AdamW for the rest", "K. Jordan et al. 2024"),
    ("d-muon", DMuon, "Muon with AdamW's update size: one learning rate for all", "arXiv 2502.16982"),
    ("manau", Manau, "D-Muon for matrices, Dana-Star-MK4 for the rest", "arXiv 2502.16982, 2602.05298"),
):
    _register(
        OptimizerSpec(
            name=_name,
            summary=_summary,
            reference=_reference,
            build=_class,
            settings=settings_of(_class),
            decay="coupled",
            elementwise=False,
            groups=model_groups,
        )
    )

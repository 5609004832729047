"""Baselines from the library pytorch-optimizer (extra `baselines`), which is imported when one of them is built.

An entry's defaults are its authors', or the usual ones for language models where the library's differ. All of them are
passed to the library's class, so that the listed defaults are the ones that are used.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from danalab.errors import MissingExtra, UserError
from danalab.optim.optimizers.matrix.base import AUXILIARY, model_groups
from danalab.optim.registry.spec import OptimizerSpec, Setting
from danalab.optim.settings import HELP

Settings = dict[str, Setting]


def _settings(**defaults: Any) -> Settings:
    """name -> default, or (default, help) where the shared help text does not fit."""
    found = {}
    for name, value in {**defaults, "weight_decay": 0.0, "maximize": False}.items():
        is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)
        default, text = value if is_pair else (value, HELP[name])
        found[name] = Setting(default, text, "switch" if name == "foreach" else "")
    return found


_MOMENTS: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "foreach": None}
_AVERAGE: dict[str, Any] = {
    "r": (0.0, "later weights count as t^r in the average"),
    "weight_lr_power": (2.0, "weights count as (largest lr so far)^this in the average"),
}
_SCHEDULE_FREE: dict[str, Any] = {
    "decoupled": False,
    "train_eval": True,
    "clocks": ("train_mode", "weight_sum", "lr_max"),
    "advice": "needs no decay of the learning rate: --scheduler wsd --fract-decay 0 is warm-up alone",
}


def _entry(
    name: str, class_name: str, summary: str, reference: str, settings: Settings, *, decoupled: bool = True, **more: Any
) -> OptimizerSpec:
    """An entry. Weight decay is never part of the gradient, p <- p (1 - lr weight_decay).

    `decoupled`: whether the class has a switch for that.
    """
    constants = {"weight_decouple": True} if decoupled else {}
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference=reference,
        build=partial(build, name, class_name, settings, constants, more.get("groups") is model_groups),
        settings=settings,
        decay="coupled",
        extra=EXTRA,
        **more,
    )


EXTRA = "baselines"


def build(
    name: str,
    class_name: str,
    known: Mapping[str, Setting],
    constants: Mapping[str, Any],
    by_kind: bool,
    params: Any,
    lr: float,
    **settings: Any,
) -> torch.optim.Optimizer:
    """The library's optimizer for `params`, with the entry's defaults for what `settings` lacks."""
    try:
        from danalab.optim.registry.catalogue import library_classes
    except ImportError as error:
        raise MissingExtra("pytorch-optimizer", EXTRA, f"optimizer {name}") from error
    groups = list(params)
    values = {setting: what.default for setting, what in known.items()} | settings | dict(constants)
    if "foreach" in values and values["foreach"] is None and not any(p.is_cuda for p in _tensors(groups)):
        values["foreach"] = False  # lists of tensors gain nothing on CPUs
    if "lr_1d" in values and values["lr_1d"] is None:
        values["lr_1d"] = lr
    if by_kind:
        aux_lr, factor, aux_decay = (values.pop(setting) for setting in AUXILIARY)
        values["adamw_lr"] = factor * lr if aux_lr is None else aux_lr
        values["adamw_wd"] = aux_decay or 0.0
        groups = _with_kinds(name, groups, values["adamw_lr"], values.get("weight_decay", 0.0), aux_decay)
    return library_classes.find(class_name)(groups, lr=lr, **values)


def _tensors(groups: list[Any]) -> list[Any]:
    return [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]


def _with_kinds(
    name: str, groups: list[Any], adamw_lr: float, weight_decay: float, aux_decay: float | None
) -> list[dict[str, Any]]:
    """Groups with `use_muon`: given, or inferred where a group has only matrices, or none."""
    if groups and not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    found = []
    for group in groups:
        if group.get("kind") in ("experts", "router"):
            # The library treats a stack as the matrix of a convolution, which would orthogonalise experts together; and
            # it decays other parameters only where the group has a weight decay.
            decay = weight_decay if aux_decay is None else aux_decay
            group = {"weight_decay": decay, **group, "use_muon": False}
        if "use_muon" not in group:
            are_matrices = {p.ndim > 1 for p in group["params"]}
            if len(are_matrices) > 1:
                raise UserError(f"{name}: a group has matrices and vectors; give a model, or groups with use_muon")
            group = {**group, "use_muon": are_matrices == {True}}
        found.append(group if group["use_muon"] else {"lr": adamw_lr, **group})
    return found


SPECS = (
    _entry(
        "soap",
        "SOAP",
        "Adam in the eigenbasis of Shampoo's preconditioner",
        "Vyas et al. 2024, arXiv 2409.11321",
        _settings(
            betas=(0.95, 0.95),
            eps=1e-8,
            shampoo_beta=(None, "rate of the preconditioner's averages; none = the second of betas"),
            precondition_frequency=(10, "steps between new eigenbases"),
            max_precondition_dim=(10_000, "longer sides of a matrix are not preconditioned"),
            merge_dims=(False, "merge small dimensions of tensors of three and more"),
            precondition_1d=(False, "precondition vectors too"),
            correct_bias=(True, "Adam's bias correction"),
            normalize_gradient=(False, "scale each tensor's update to root mean square 1"),
        ),
        decoupled=False,
        elementwise=False,
        advice="its first step only sets up the preconditioner",
    ),
    _entry(
        "lion",
        "Lion",
        "sign of an interpolated momentum",
        "Chen et al. 2023, arXiv 2302.06675",
        _settings(betas=((0.9, 0.99), "weight of the momentum in the update, and its own rate"), foreach=None),
    ),
    _entry(
        "prodigy",
        "Prodigy",
        "Adam whose learning rate follows an estimate of the distance to the solution",
        "Mishchenko and Defazio 2023, arXiv 2306.06101",
        _settings(
            **_MOMENTS,
            beta3=(None, "rate of the distance's averages; none = root of the second of betas"),
            d0=(1e-6, "first estimate of the distance"),
            d_coef=(1.0, "factor of the estimate; the setting to tune in place of lr"),
            bias_correction=(False, "Adam's bias correction"),
            safeguard_warmup=(True, "keep the estimate sound while the learning rate warms up"),
        ),
        per_parameter=False,
        clocks=("step", "d", "d_max"),
        one_rate=True,
        sums_over_ranks=True,
        elementwise=False,
        advice="lr 1 is meant: the schedule's factor multiplies the estimated distance; tune d_coef",
    ),
    _entry(
        "adopt",
        "ADOPT",
        "Adam that normalises by the second moment before the new gradient: converges for any beta2",
        "Taniguchi et al. 2024, arXiv 2411.02853",
        _settings(**{**_MOMENTS, "betas": (0.9, 0.9999), "eps": (1e-6, "least root of the second moment")}),
        advice="its first step only sets up the second moment",
    ),
    _entry(
        "mars",
        "MARS",
        "Adam on variance-reduced gradients, from differences of successive ones (approximate form)",
        "Yuan et al. 2024, arXiv 2411.10438",
        _settings(
            **{**_MOMENTS, "betas": (0.95, 0.99)},
            gamma=(0.025, "strength of the correction by the previous gradient"),
            mars_type=("adamw", "what the corrected gradient goes into: adamw, lion or shampoo"),
            optimize_1d=(False, "correct vectors too; otherwise they get plain AdamW"),
            lr_1d=(None, "peak learning rate of vectors; none = lr"),
            betas_1d=((0.9, 0.95), "moments' rates for vectors"),
            weight_decay_1d=(0.0, "weight decay of vectors"),
            cautious=(False, "leave out coordinates where momentum and gradient disagree"),
        ),
        elementwise=False,
    ),
    _entry(
        "lamb",
        "Lamb",
        "Adam with each tensor's step in proportion to its norm, for large batches",
        "You et al. 2019, arXiv 1904.00962",
        _settings(
            **{**_MOMENTS, "eps": 1e-6},
            grad_averaging=(True, "weigh a new gradient by 1 - beta1"),
            adam=(False, "leave the trust ratio at 1"),
        ),
        elementwise=False,
    ),
    _entry(
        "sf-adamw",
        "ScheduleFreeAdamW",
        "AdamW at an average of its own iterates, without a schedule",
        "Defazio et al. 2024, arXiv 2405.15682",
        _settings(
            **{**_MOMENTS, "betas": ((0.9, 0.999), "weight of the average in the training weights; second moment")},
            **_AVERAGE,
            decoupling_c=(0, "scales the average's weights, as if for a window of c; 0 = plain average"),
        ),
        **_SCHEDULE_FREE,
    ),
    _entry(
        "sf-sgd",
        "ScheduleFreeSGD",
        "SGD at an average of its own iterates, without a schedule",
        "Defazio et al. 2024, arXiv 2405.15682",
        _settings(
            momentum=(0.9, "weight of the average in the training weights"),
            **_AVERAGE,
            foreach=None,
        ),
        **_SCHEDULE_FREE,
    ),
    _entry(
        "signsgd",
        "SignSGD",
        "sign of the gradient",
        "Bernstein et al. 2018, arXiv 1802.04434",
        _settings(momentum=(0.0, "rate of the gradient's average"), foreach=None),
    ),
    _entry(
        "signum",
        "SignSGD",
        "sign of the averaged gradient",
        "Bernstein et al. 2018, arXiv 1802.04434",
        _settings(momentum=(0.9, "rate of the gradient's average"), foreach=None),
    ),
    _entry(
        "adan",
        "Adan",
        "Adam with a Nesterov momentum estimated from differences of gradients",
        "Xie et al. 2022, arXiv 2208.06677",
        _settings(
            **{**_MOMENTS, "betas": ((0.98, 0.92, 0.99), "rates of gradient, its differences, and second moment")}
        ),
    ),
    _entry(
        "adabelief",
        "AdaBelief",
        "Adam that divides by the deviation of gradients from their average",
        "Zhuang et al. 2020, arXiv 2010.07468",
        _settings(**{**_MOMENTS, "eps": 1e-16}),
    ),
    _entry(
        "laprop",
        "LaProp",
        "Adam that normalises each gradient before averaging it",
        "Ziyin et al. 2020, arXiv 2002.04839",
        _settings(**{**_MOMENTS, "eps": 1e-15}, centered=(False, "divide by the deviation from the mean")),
    ),
    _entry(
        "stableadamw",
        "StableAdamW",
        "AdamW with each tensor's update clipped to root mean square 1",
        "Wortsman et al. 2023, arXiv 2304.13013",
        _settings(
            **{**_MOMENTS, "betas": (0.9, 0.99)},
            kahan_sum=(False, "carry the rounding errors of 16-bit parameters to the next step"),
        ),
        elementwise=False,
    ),
    _entry(
        "grams",
        "Grams",
        "Adam's magnitudes with the gradient's signs",
        "Cao et al. 2024, arXiv 2412.17107",
        _settings(**{**_MOMENTS, "eps": 1e-6}),
    ),
    _entry(
        "tiger",
        "Tiger",
        "sign of an averaged gradient, with one state tensor",
        "J. Su 2023, github.com/bojone/tiger",
        _settings(beta=(0.965, "rate of the gradient's average"), foreach=None),
    ),
    _entry(
        "came",
        "CAME",
        "Adafactor with a confidence in its own updates: factored memory",
        "Luo et al. 2023, arXiv 2307.02047",
        _settings(
            betas=((0.9, 0.999, 0.9999), "rates of update, second moment, and instability"),
            clip_threshold=(1.0, "largest root mean square of an update before averaging"),
            eps1=(1e-30, "added to squared gradients"),
            eps2=(1e-16, "added to squared instabilities"),
            foreach=None,
        ),
        elementwise=False,
    ),
    _entry(
        "adamuon",
        "AdaMuon",
        "orthogonalised momentum with a second moment, AdamW for the rest",
        "Si et al. 2025, arXiv 2507.11005",
        _settings(
            betas=((0.9, 0.95), "matrices: momentum and second moment"),
            ns_steps=5,
            aux_lr=None,
            aux_lr_factor=1.0,
            aux_weight_decay=(None, "weight decay of parameters that are not matrices; none = 0"),
            adamw_betas=((0.9, 0.999), "moments' rates of parameters that are not matrices"),
            eps=1e-10,
            foreach=None,
        ),
        elementwise=False,
        groups=model_groups,
    ),
    _entry(
        "normuon",
        "NorMuon",
        "Muon with each neuron's update normalised, AdamW for the rest",
        "Li et al. 2025, arXiv 2510.05491",
        _settings(
            momentum=(0.95, "rate of the matrices' momentum"),
            beta2=(0.95, "rate of the neurons' second moment"),
            nesterov=True,
            ns_steps=5,
            update_scale=("match_rms", "match_rms: root mean square 0.2, as AdamW's; preserve_norm: as Muon's"),
            aux_lr=None,
            aux_lr_factor=1.0,
            aux_weight_decay=(None, "weight decay of parameters that are not matrices; none = 0"),
            adamw_betas=((0.9, 0.95), "moments' rates of parameters that are not matrices"),
            eps=1e-10,
            foreach=None,
        ),
        elementwise=False,
        groups=model_groups,
    ),
)

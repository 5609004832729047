"""Optimizers in the wrappers of `danalab.optim.optimizers.wrappers`."""

from typing import Any

import torch

from danalab.optim.optimizers.elementwise import DanaStarMK4
from danalab.optim.optimizers.matrix.base import model_groups
from danalab.optim.optimizers.matrix.muon import Muon
from danalab.optim.optimizers.wrappers import SNOO, SODA, EMANesterov
from danalab.optim.registry.spec import OptimizerSpec, Setting, settings_of
from danalab.optim.settings import HELP


def _adamw(params: Any, lr: float, settings: dict[str, Any]) -> torch.optim.Optimizer:
    from danalab.optim.registry import build_optimizer  # which reads this catalogue

    return build_optimizer("adamw", params, lr, **settings)


def _snoo(
    params: Any, lr: float, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9, **settings: Any
) -> torch.optim.Optimizer:
    return SNOO(_adamw(params, lr, settings), k=k, lr_outer=lr_outer, mu=mu)


def _snoo_dana(
    params: Any, lr: float, *, k: int = 20, lr_outer: float = 0.5, mu: float = 0.9, **settings: Any
) -> torch.optim.Optimizer:
    return SNOO(DanaStarMK4(params, lr, **settings), k=k, lr_outer=lr_outer, mu=mu)


def _soda(params: Any, lr: float, *, offset: float = 2.0, **settings: Any) -> torch.optim.Optimizer:
    return SODA(_adamw(params, lr, settings), offset=offset)


def _soda_muon(params: Any, lr: float, *, offset: float = 2.0, **settings: Any) -> torch.optim.Optimizer:
    return SODA(Muon(params, lr, **settings), offset=offset)


def _ema_nesterov(
    params: Any, lr: float, *, gamma: float = 0.99, beta: float = 0.6, **settings: Any
) -> torch.optim.Optimizer:
    return EMANesterov(_adamw(params, lr, settings), gamma=gamma, beta=beta)


for _build in (_snoo, _snoo_dana, _soda, _soda_muon, _ema_nesterov):
    _build.takes_dtensors = True  # pyright: ignore[reportFunctionMemberAccess]
_soda_muon.split_group = Muon.split_group  # pyright: ignore[reportFunctionMemberAccess]


def _settings(inner: Any, wrapper: Any, without: tuple[str, ...] = (), **help_texts: str) -> dict[str, Setting]:
    """Settings of the inner optimizer, then the wrapper's."""
    found = settings_of(inner, HELP, **({"weight_decay": 0.0} if inner is torch.optim.AdamW else {}))
    found |= settings_of(wrapper, {**HELP, **help_texts, "inner": ""})
    return {name: setting for name, setting in found.items() if name not in (*without, "inner")}


_DECAYS = ("weight_decay", "aux_weight_decay", "cautious_decay", "scaled_decay")
_SODA = "a larger one makes the first pulls to the initial weights, 1 / (k + offset), weaker"

SPECS = (
    OptimizerSpec(
        name="snoo",
        summary="AdamW with an outer Nesterov step every k of its steps",
        reference="Kallusky et al. 2025, arXiv 2510.15830",
        build=_snoo,
        own_weights=True,
        settings=_settings(torch.optim.AdamW, SNOO),
        decay="coupled",
    ),
    OptimizerSpec(
        name="snoo-dana",
        summary="Dana-Star-MK4 with an outer Nesterov step every k of its steps",
        reference="arXiv 2510.15830, 2602.05298",
        build=_snoo_dana,
        own_weights=True,
        settings=_settings(DanaStarMK4, SNOO),
        decay="independent",
        log_time=True,
    ),
    OptimizerSpec(
        name="soda",
        summary="AdamW whose weights are pulled to their initial values, ever weaker, in place of weight decay",
        reference="Pethick et al. 2026, arXiv 2605.11172",
        build=_soda,
        settings=_settings(torch.optim.AdamW, SODA, _DECAYS, offset=_SODA),
        decay="none",
    ),
    OptimizerSpec(
        name="soda-muon",
        summary="Muon whose weights are pulled to their initial values, ever weaker, in place of weight decay",
        reference="arXiv 2605.11172; K. Jordan et al. 2024",
        build=_soda_muon,
        settings=_settings(Muon, SODA, _DECAYS, offset=_SODA),
        decay="none",
        elementwise=False,
        groups=model_groups,
    ),
    OptimizerSpec(
        name="ema-nesterov",
        summary="AdamW with gradients ahead of the weights, along the average of their changes",
        reference="Yau et al. 2026, arXiv 2605.25395",
        build=_ema_nesterov,
        own_weights=True,
        settings=_settings(
            torch.optim.AdamW,
            EMANesterov,
            gamma="rate of the average of changes",
            beta="distance of the look ahead at the peak learning rate, in average changes",
        ),
        decay="coupled",
    ),
)

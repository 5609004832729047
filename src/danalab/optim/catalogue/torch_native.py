"""Optimizers that torch ships, with defaults for language models and its errors made one line."""

from __future__ import annotations

from typing import Any

import torch

from danalab.errors import UserError
from danalab.optim.catalogue.help_texts import HELP
from danalab.optim.spec import OptimizerSpec, settings_of


def _adamw(params: Any, lr: float, **settings: Any) -> torch.optim.Optimizer:
    """torch's AdamW with the ladder's defaults; its fused kernel unless told otherwise, on any device that has it."""
    settings = {"weight_decay": 0.0, **settings}
    if not any(settings.get(way) is not None for way in ("fused", "foreach")) and not settings.get("differentiable"):
        settings["fused"] = True
    try:
        return torch.optim.AdamW(params, lr=lr, **settings)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"adamw: {str(error).splitlines()[0]}") from error


SPECS = (
    OptimizerSpec(
        name="adamw",
        summary="Adam with decoupled weight decay (torch's)",
        reference="Loshchilov and Hutter 2019, arXiv 1711.05101",
        build=_adamw,
        settings=settings_of(torch.optim.AdamW, HELP, weight_decay=0.0),
        decay="coupled",
    ),
)

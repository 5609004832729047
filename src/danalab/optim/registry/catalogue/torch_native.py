"""Optimizers that torch ships, with defaults for language models."""

from functools import partial
from typing import Any

import torch

from danalab.errors import UserError
from danalab.optim.registry.spec import OptimizerSpec, settings_of
from danalab.optim.settings import HELP


def _adamw(params: Any, lr: float, **settings: Any) -> torch.optim.Optimizer:
    """torch's AdamW with the ladder's defaults, and its fused kernel unless `fused` or `foreach` is given."""
    settings = {"weight_decay": 0.0, **settings}
    if not any(settings.get(flag) is not None for flag in ("fused", "foreach")) and not settings.get("differentiable"):
        settings["fused"] = True
    try:
        return torch.optim.AdamW(params, lr=lr, **settings)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"adamw: {str(error).splitlines()[0]}") from error


def _build(optimizer: type[torch.optim.Optimizer], defaults: dict[str, Any], params: Any, lr: float, **settings: Any):
    return optimizer(params, lr=lr, **{**defaults, **settings})  # pyright: ignore[reportCallIssue]


def _entry(
    name: str, optimizer: Any, summary: str, reference: str, defaults: dict[str, Any], **capabilities: Any
) -> OptimizerSpec:
    settings = settings_of(optimizer, {**HELP, **_TEXTS.get(name, {})}, **defaults)
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference=reference,
        build=partial(_build, optimizer, defaults),
        settings=settings,
        decay="coupled",
        in_parts=True,
        **capabilities,
    )


_TEXTS = {
    "sgd": {
        "momentum": "rate of the momentum, a sum of gradients",
        "dampening": "a new gradient is weighted by 1 - dampening",
        "nesterov": "look ahead by one step of momentum",
        "weight_decay": "weight decay, added to the gradient: also part of the momentum",
    },
    "adafactor": {
        "beta2_decay": "the second moment's rate is 1 - t^this",
        "eps": "added to squared gradients (none = of the dtype); least root mean square of weights",
        "d": "largest root mean square of an update",
    },
    "nadam": {"momentum_decay": "how fast the momentum's rate grows to the first of betas"},
}

SPECS = (
    OptimizerSpec(
        name="adamw",
        summary="Adam with decoupled weight decay (torch's)",
        reference="Loshchilov and Hutter 2019, arXiv 1711.05101",
        build=_adamw,
        settings=settings_of(torch.optim.AdamW, HELP, weight_decay=0.0),
        decay="coupled",
        in_parts=True,
    ),
    _entry(
        "sgd",
        torch.optim.SGD,
        "stochastic gradient descent with momentum (torch's)",
        "Robbins and Monro 1951; Polyak 1964",
        {"momentum": 0.9},
    ),
    _entry(
        "adafactor",
        torch.optim.Adafactor,
        "Adam with a factored second moment and steps relative to the weights (torch's)",
        "Shazeer and Stern 2018, arXiv 1804.04235",
        {},
        elementwise=False,
        advice="lr is relative: each tensor's step is lr times its root mean square",
    ),
    _entry(
        "radam",
        torch.optim.RAdam,
        "AdamW whose early steps are rectified in place of a warm-up (torch's)",
        "Liu et al. 2019, arXiv 1908.03265",
        {"decoupled_weight_decay": True},
    ),
    _entry(
        "nadam",
        torch.optim.NAdam,
        "AdamW with Nesterov momentum (torch's)",
        "Dozat 2016",
        {"decoupled_weight_decay": True},
    ),
)

"""Exercise 1, a solution: Lion in logarithmic time, registered under the name "log-lion".

    python examples/exercises/log_lion.py

    a = delta / (delta + t)      p <- k (p - lr sign(m + a_fast (g - m)))      m <- m + a (g - m)

The direction weighs the new gradient by `fast`, the average by a(t); Lion has constants for both.
Source of Lion: Chen et al. 2023, arXiv 2302.06675.
"""

from dataclasses import KW_ONLY

import torch
from torch import nn

from danalab.optim import build_optimizer
from danalab.optim.optimizers.base import DecayingOptimizer
from danalab.optim.registry import OptimizerSpec, registered, settings_of
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import decay_factor
from danalab.optim.settings import HELP, Decay, Rate, Runtime, takes


class Settings(Runtime, Decay, Rate):
    lr: float = 1e-4
    _: KW_ONLY
    delta: float = 8.0
    fast: float = 0.1


def scalars(group, t):
    """Scalars of step t; the names are the keyword arguments of `update`."""
    gain = group["delta"] / (group["delta"] + t)
    return {"lr": group["lr"], "gain": gain, "fast": group["fast"], "decay_factor": decay_factor(group, t)}


def update(p, g, m, *, lr, gain, fast, decay_factor):
    """The new (p, m). Pure: the arguments stay as they are."""
    step = torch.sign(m + fast * (g - m))
    return decay_factor * (p - lr * step), m + gain * (g - m)


def direction(g, m, *, fast):
    """The update before the learning rate, for statistics."""
    return torch.sign(m + fast * (g - m))


class LogLion(DecayingOptimizer):
    """See the module."""

    rule = Rule("log_lion", ("exp_avg",), scalars=scalars, update=update, direction=direction, gains=("gain",))

    @takes(Settings)
    def __init__(self, params, settings): ...


SPEC = OptimizerSpec(
    name="log-lion",
    summary="Lion with a logarithmic-time average",
    reference="arXiv 2302.06675, 2602.05298",
    build=LogLion,
    settings=settings_of(LogLion, {**HELP, "fast": "weight of the new gradient in the direction"}),
    decay="independent",
)


def register() -> None:
    """Add the optimizer to the registry of this process; a second call does nothing."""
    if SPEC.name not in registered().names():
        registered().add(SPEC.name, SPEC)


def main() -> None:
    register()
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = build_optimizer("log-lion", model, lr=2e-3, omega=4.0, horizon=300)
    for step in range(300):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == 299:
            print(f"step {step:3}  loss {loss:.3f}")


if __name__ == "__main__":
    main()

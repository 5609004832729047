"""ADana's schedules in a run whose learning rate decays to 0, and the ways to cool its momentum down with it.

    s(t) = lr(t) / peak          time(t) = t, or the accumulated learning rate  sum_i s(i)          (t = 1, 2, ...)
    y <- y + Delta (g - y),      theta <- theta - peak s^(1 + r) [ g + ((1 + time s^w)^(1 - kappa) s^a + offset) y ]
    Delta(t) = s^b delta / (delta + time s^m)

With all exponents 0 this is ADana, whose momentum knows nothing of the learning rate.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from danalab.theory.dynamics.algorithms import Rates


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decay:
    """s(t): up to 1 in a line, 1 until `hold` of the run, then down to 0 at its end, in a line or in half a cosine."""

    horizon: Any
    """Length of the run [steps]."""
    hold: Any = 0.0
    cosine: Any = 0.0
    """1: half a cosine."""
    warmup: Any = 0.0
    """Share of the run in which s rises."""

    def factor(self, t: Any) -> Any:
        """s of the 0-based step t."""
        x = self._share(t)
        falling = jnp.where(self.cosine > 0, (1 + jnp.cos(jnp.pi * x)) / 2, 1 - x)
        return jnp.minimum((t + 1) / self._rise, falling)

    def clock(self, t: Any) -> Any:
        """Accumulated learning rate, in steps at its peak, at the end of the 0-based step t."""
        x = self._share(t + 1)
        falling = jnp.where(self.cosine > 0, x / 2 + jnp.sin(jnp.pi * x) / (2 * jnp.pi), x - x**2 / 2)
        rising = jnp.minimum(t + 1, self._rise) ** 2 / (2 * self._rise)
        level = jnp.clip(t + 1 - self._rise, 0, jnp.maximum(self._start * self.horizon - self._rise, 0))
        return rising + level + (1 - self._start) * self.horizon * falling

    @property
    def _rise(self) -> Any:
        """Steps of the warm-up; without one, one step, which has s = 1."""
        return jnp.maximum(self.warmup * self.horizon, 1.0)

    @property
    def _start(self) -> Any:
        """Share of the run at which the decay begins."""
        return jnp.maximum(self.hold, self.warmup)

    def _share(self, t: Any) -> Any:
        return jnp.clip((t / self.horizon - self._start) / (1 - self._start), 0.0, 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cooldown:
    """Exponents of s in the momentum's schedules; see the module."""

    memory: Any = 0.0
    """m, of the time in Delta."""
    time: Any = 0.0
    """w, of the time in the momentum's weight."""
    weight: Any = 0.0
    """a, of the momentum's weight itself."""
    gradient: Any = 0.0
    """b, of Delta: gradients are averaged by the learning rate they came with."""
    rate: Any = 0.0
    """r, of the learning rate itself, which is no cooldown of the momentum: a control."""
    clock: Any = 0.0
    """1: time is the accumulated learning rate."""


COOLDOWNS = {
    "none": Cooldown(),
    "alpha s": Cooldown(weight=1),
    "alpha s^2": Cooldown(weight=2),
    "memory t s^0.5": Cooldown(memory=0.5),
    "memory t s": Cooldown(memory=1),
    "memory t s^2": Cooldown(memory=2),
    "memory and alpha, t s": Cooldown(memory=1, time=1),
    "memory t s, alpha s^0.5": Cooldown(memory=1, weight=0.5),
    "memory t s, alpha s": Cooldown(memory=1, weight=1),
    "clock": Cooldown(clock=1),
    "clock, gradients by s": Cooldown(clock=1, gradient=1),
    "clock, memory s": Cooldown(clock=1, memory=1),
    "learning rate s^2": Cooldown(rate=1),
}
"""Candidates by name."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CooledADana:
    """ADana without its normalisation, with a learning rate that decays and a momentum that cools down."""

    lr: Any
    """Peak learning rate."""
    kappa: Any
    delta: Any
    decay: Decay
    cooldown: Cooldown = field(default_factory=Cooldown)
    offset: Any = 1.0
    """Added to the damping; 1 is the published implementation of ADana."""

    def at(self, t: Any) -> Rates:
        s, c = self.decay.factor(t), self.cooldown
        time = jnp.where(c.clock > 0, self.decay.clock(t), t + 1)
        forget = s**c.gradient * self.delta / (self.delta + time * s**c.memory)
        weight = (1 + time * s**c.time) ** (1 - self.kappa) * s**c.weight + self.offset
        lr = self.lr * s ** (1 + c.rate)
        return Rates(forget, lr, lr * weight, forget)

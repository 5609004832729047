"""rules.yaml: fitted laws that `danalab report --rules FILE` writes, people edit, and plan and train read with --rules.

learning_rate:
- {arch: enoki, opt: adana, global_batch: 32, a: 22.5, b: 122000.0, d: -0.618}    # lr = a (b + P)^d
weight_decay:
- {arch: enoki, opt: adana, omega: 4.0}
dimensions:                                              # d_model = head_dim x heads, which --heads gives
- {arch: enoki, head_dim: 64, layers_per_head: 0.75, mlp_ratio: 4.0}    # blocks: 0.75 x heads, rounded down
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt

from danalab.errors import UserError
from danalab.files import read_yaml, to_yaml, validated, write_atomically
from danalab.optim.catalogue import OPTIMIZERS
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.dimensions import Dimensions, explicit_dimensions
from danalab.scaling.learning_rate import LrLaw
from danalab.train.config.fields import Count, NonNegative, Positive

Exponent = Annotated[float, Ge(-10), Lt(10)]


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """A learning-rate law of an optimizer on an architecture, with P parameters without embeddings."""

    arch: str
    opt: str
    global_batch: Count
    a: Positive
    b: NonNegative
    d: Exponent


@dataclass(frozen=True, kw_only=True)
class DecayRule:
    """The weight-decay strength of an optimizer on an architecture."""

    arch: str
    opt: str
    omega: NonNegative


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """The dimensions of an architecture by its number of heads."""

    arch: str
    head_dim: Count
    layers_per_head: Positive
    mlp_ratio: Positive

    def dimensions(self, heads: int, vocab_size: int, n_kv_heads: int | None = None) -> Dimensions:
        """d_model = head_dim x heads, n_layers = layers_per_head x heads, mlp_dim = mlp_ratio x d_model, floored."""
        d_model, n_layers = self.head_dim * heads, _whole(self.layers_per_head * heads)
        if n_layers < 1:
            raise UserError(f"--rules: --heads {heads} x {self.layers_per_head:g} layers a head is less than one layer")
        return explicit_dimensions(
            self.arch, d_model, n_layers, heads, self.head_dim, _whole(self.mlp_ratio * d_model), vocab_size, n_kv_heads
        )


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The content of a rules file."""

    learning_rate: tuple[RateRule, ...] = ()
    weight_decay: tuple[DecayRule, ...] = ()
    dimensions: tuple[SizeRule, ...] = ()

    def law(self, arch: str, opt: str, global_batch: int) -> tuple[LrLaw, str] | None:
        """The learning-rate law fitted at the nearest batch, and a sentence on its source."""
        rules = _matching(self.learning_rate, arch, opt)
        if not rules:
            return None
        best = min(rules, key=lambda rule: abs(math.log(rule.global_batch / global_batch)))
        law = LrLaw(best.a, best.b, best.d, batch=best.global_batch)
        return law, f"--rules: fitted for {opt} on {arch} at batch {law.batch}"

    def omega(self, arch: str, opt: str) -> float | None:
        """The weight-decay strength, or None."""
        return next((rule.omega for rule in _matching(self.weight_decay, arch, opt)), None)

    def size(self, arch: str) -> SizeRule | None:
        """The rule of an architecture's dimensions, or None."""
        return next((rule for rule in self.dimensions if _same_arch(rule.arch, arch)), None)

    def write(self, path: Path) -> None:
        parts = {name: [dict(row) for row in rows] for name, rows in asdict(self).items() if rows}
        write_atomically(path, to_yaml(parts, flow=None))


def read_rules(path: Path) -> Rules:
    """Read a rules file."""
    content: Any = read_yaml(path)
    known = [field.name for field in fields(Rules)]
    if not isinstance(content, dict) or not set(content) <= set(known):
        raise UserError(f"--rules {path}: {', '.join(known)} are expected")
    rules = validated(Rules, content, f"--rules {path}")
    for rule in (*rules.learning_rate, *rules.weight_decay, *rules.dimensions):
        ARCHITECTURES.canonical(rule.arch)
    for rule in (*rules.learning_rate, *rules.weight_decay):
        OPTIMIZERS.canonical(rule.opt)
    return rules


def _whole(value: float) -> int:
    return math.floor(value + 1e-9)  # a third of three heads is one layer


def _matching(rules: Sequence[Any], arch: str, opt: str) -> list[Any]:
    return [rule for rule in rules if _same_arch(rule.arch, arch) and OPTIMIZERS.canonical(rule.opt) == opt]


def _same_arch(name: str, other: str) -> bool:
    return ARCHITECTURES.canonical(name) == ARCHITECTURES.canonical(other)

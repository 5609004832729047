"""rules.yaml: fitted laws that `danalab report --rules FILE` writes, people edit, and plan and train read with --rules.

learning_rate:
- {arch: enoki, opt: adana, global_batch: 32, a: 22.5, b: 122000.0, d: -0.618}    # lr = a (b + P)^d
weight_decay:
- {arch: enoki, opt: adana, omega: 4.0}
dimensions:                                              # d_model = head_dim x heads, which --heads gives
- {arch: enoki, head_dim: 64, layers_per_head: 0.75, mlp_ratio: 4.0}    # blocks: 0.75 x heads, rounded down

The original code's scaling_rules.yaml, a mapping of architectures, is read, too.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from danalab.errors import UserError
from danalab.files import read_yaml, to_yaml, validated, write_atomically
from danalab.models.architectures import architecture
from danalab.models.config import explicit_sizes
from danalab.optimizer_facts import canonical_name
from danalab.scaling.learning_rate import LrLaw, law_at
from danalab.train.config.flags import Count, NonNegative, Positive
from danalab.train.config.train_config import TrainConfig

Exponent = Annotated[float, Ge(-10), Lt(10)]


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """A learning-rate law of an optimizer (at a `kappa`) on an architecture, with P parameters without embeddings."""

    arch: str
    opt: str
    global_batch: Count
    a: Positive
    b: NonNegative
    d: Exponent
    kappa: float | None = None


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

    def sizes(self, heads: int) -> dict[str, int]:
        """d_model = head_dim x heads, n_layers = layers_per_head x heads, mlp_dim = mlp_ratio x d_model, floored."""
        d_model, n_layers = self.head_dim * heads, _whole(self.layers_per_head * heads)
        if n_layers < 1:
            raise UserError(
                f"--rules: --heads {heads} x {self.layers_per_head:g} layers a head is less than one layer"
            )
        return explicit_sizes(
            self.arch, d_model, n_layers, heads, self.head_dim, _whole(self.mlp_ratio * d_model)
        )


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The content of a rules file."""

    learning_rate: tuple[RateRule, ...] = ()
    weight_decay: tuple[DecayRule, ...] = ()
    dimensions: tuple[SizeRule, ...] = ()

    def rate(self, config: TrainConfig) -> tuple[float, str] | None:
        """(learning rate of a run by the law at its batch, a sentence on its source); None: no law is here."""
        arch, opt = config.arch, config.opt
        rules = _matching(self.learning_rate, arch, opt)
        if not rules:
            return None
        rows = [LrLaw(r.a, r.b, r.d, r.kappa, r.global_batch) for r in rules]
        law = law_at(rows, config.global_batch, config.kappa)
        return law(config.model.non_emb_params), f"--rules: fitted for {opt} on {arch} at {law.batches}"

    def omega(self, arch: str, opt: str) -> float | None:
        """The weight-decay strength, or None."""
        return next((rule.omega for rule in _matching(self.weight_decay, arch, opt)), None)

    def sizes(self, given: TrainConfig) -> dict[str, Any]:
        """The model's dimensions: by the rule for its architecture where --heads asks for one, else as given."""
        rule = next((rule for rule in self.dimensions if _same_arch(rule.arch, given.arch)), None)
        if rule is None or given.heads is None:
            return given.sizes()
        return given.without_contradiction(rule.sizes(given.heads))

    def write(self, path: Path) -> None:
        parts = {
            name: [{key: value for key, value in row.items() if value is not None} for row in rows]
            for name, rows in asdict(self).items()
            if rows
        }
        write_atomically(path, to_yaml(parts, flow=None))


_Coefficients = dict[str, float | None]
_Formula = dict[str, _Coefficients | dict[str | float, _Coefficients]]
"""Optimizer -> coefficients, or kappa -> coefficients; None where nobody had fitted them."""


@dataclass(frozen=True, kw_only=True)
class _OriginalRule:
    """An architecture in the original's file. Its sizes are formulas in Python; those of our size law are the same."""

    head_dim: Count
    n_layer_formula: str
    mlp_hidden_formula: str
    n_head_formula: Literal["heads"] = "heads"
    n_embd_formula: str = "heads * head_dim"
    non_emb_formula: Literal["12 * n_embd**2 * n_layer"] = "12 * n_embd**2 * n_layer"
    total_params_formula: Literal["non_emb + 2 * n_embd * 50304"] = "non_emb + 2 * n_embd * 50304"
    model: str | None = None
    weight_tying: Literal[False] = False
    lr_formula: _Formula = field(default_factory=dict)
    lr_formulas: _Formula = field(default_factory=dict)
    """Another spelling of `lr_formula`, that of its documents."""
    lr_formula_512: _Formula = field(default_factory=dict)


_NO_OPTIMIZER = "dana-star-mk4-tau"
"""A row of the original's file that names none of its optimizers."""


def _from_original(content: dict[str, Any], place: str) -> dict[str, list[dict[str, Any]]]:
    """The content of the original's file as that of ours."""
    sizes, rates = [], []
    for key, rule in validated(dict[str, _OriginalRule], content, place).items():
        arch, names = rule.model or key, {"head_dim": rule.head_dim}
        if unknown := set(content[key]) - {each.name for each in fields(_OriginalRule)}:
            raise UserError(f"{place}: {key}.{min(map(str, unknown))} is no key of a scaling_rules.yaml")
        if _ratio(rule.n_embd_formula, "heads", names, place) != rule.head_dim:
            raise UserError(
                f"{place}: {key}.n_embd_formula is {rule.n_embd_formula}; it must be heads * head_dim"
            )
        layers, mlp = _ratio(rule.n_layer_formula, "heads", names, place), rule.mlp_hidden_formula
        mlp_ratio = _ratio(mlp, "n_embd", names, place)
        sizes.append(
            {"arch": arch, "head_dim": rule.head_dim, "layers_per_head": layers, "mlp_ratio": mlp_ratio}
        )
        for batch, formula in ((32, rule.lr_formula | rule.lr_formulas), (512, rule.lr_formula_512)):
            for opt, entry in formula.items():
                by_kappa: dict[Any, Any] = {None: entry} if "a" in entry else entry
                rates += [
                    {"arch": arch, "opt": opt, "global_batch": batch, "kappa": kappa, **numbers}
                    for kappa, numbers in by_kappa.items()
                    if opt != _NO_OPTIMIZER and None not in numbers.values()
                ]
    return {"dimensions": sizes, "learning_rate": rates}


def _ratio(formula: str, unit: str, names: dict[str, int], place: str) -> float:
    """`3 * heads // 4` in units of `heads` -> 0.75; a product, and one quotient, are all that is read."""
    product, _, divisor = formula.partition("//")
    factors = [word.strip() for word in product.split("*")]
    try:
        factors.remove(unit)
        return math.prod(names.get(word) or int(word) for word in factors) / int(divisor or 1)
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"{place}: {formula} is not a product with {unit}, as in 3 * {unit} // 4") from error


def read_rules(path: Path) -> Rules:
    """Read a rules file, ours or the original's."""
    content: Any = read_yaml(path)
    if isinstance(content, dict) and content and all(isinstance(rule, dict) for rule in content.values()):
        content = _from_original(content, f"--rules {path}")
    known = [field.name for field in fields(Rules)]
    if not isinstance(content, dict) or not set(content) <= set(known):
        raise UserError(f"--rules {path}: {', '.join(known)} are expected")
    rules = validated(Rules, content, f"--rules {path}")
    for rule in (*rules.learning_rate, *rules.weight_decay, *rules.dimensions):
        architecture(rule.arch)
    for rule in (*rules.learning_rate, *rules.weight_decay):
        canonical_name(rule.opt)
    return rules


def _whole(value: float) -> int:
    return math.floor(value + 1e-9)  # a third of three heads is one layer


def _matching(rules: Sequence[Any], arch: str, opt: str) -> list[Any]:
    return [rule for rule in rules if _same_arch(rule.arch, arch) and canonical_name(rule.opt) == opt]


def _same_arch(name: str, other: str) -> bool:
    return architecture(name) is architecture(other)

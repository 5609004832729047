"""The fitted learning-rate laws: lr = a (b + P)^d, P = non-embedding parameters by the size law.

The coefficients are data: published with arXiv 2602.05298, fitted there on FineWeb ladders at a sequence length of 2048
and a global batch of 32 (and, in a second table, 512) sequences, at horizon f = 1: 20 tokens per parameter. Batches are
counted in tokens. Between the two the rate is a power of the batch that meets both (the paper has none there); beyond
512, and beyond 32 without a second row, it is held.

Small batches want less than some of the laws give: `batch_factor`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from danalab.optimizer_facts import (
    DECAY_BOUND,
    DELTA,
    KAPPA,
    LOG_TIME_DECAY_BOUND,
    Relative,
    Usual,
    canonical_name,
    facts_of,
)

CHINCHILLA = 20.0
"""Tokens per parameter at horizon 1."""
SEQUENCE = 2048
"""Length of the sequences that the laws' batches are counted in [tokens]."""

_FALLING_WITH_THE_BATCH = {
    "enoki": {"adamw", "adamw-decaying-wd", "ademamix", "ademamix-decaying-wd", "adana", "dana-mk4"}
}
"""Laws that are too high at small batches: at 1,024 tokens a step and 12 k to 197 k parameters the best rate is 0.25 of
AdamW's and 0.25 to 0.5 of ADana's on enoki, but 0.5 to 2 times Dana-Star-MK4's, and ADana's on qwen3 is right."""
_LEAST_PARAMS = {("qwen3", "adamw"): 25_165_824}
"""Size below which the law is held constant: qwen3's AdamW law gives lr 0.14 at 0.8 M parameters; 0.004 to 0.02 works
best."""


@dataclass(frozen=True)
class LrLaw:
    """One row of the table."""

    a: float
    b: float
    d: float
    kappa: float | None = None
    """The kappa that the row was fitted at; None for optimizers without kappa."""
    batch: int | None = None
    """The batch that the row was fitted at [sequences]; None for a rate that was not fitted."""
    above: "LrLaw | None" = None
    """The law at the next larger batch, where the rate is `share` of the way to its rate, in the logarithm."""
    share: float = 0.0

    def __call__(self, non_emb_params: float) -> float:
        rate = self.a * (self.b + non_emb_params) ** self.d
        return rate if self.above is None else rate * (self.above(non_emb_params) / rate) ** self.share

    def times(self, factor: float) -> "LrLaw":
        """The law of `factor` times the rate."""
        return replace(self, a=factor * self.a, above=self.above and self.above.times(factor))

    @property
    def batches(self) -> str:
        """The batches that it was fitted at, in words."""
        return f"batch {self.batch}" if self.above is None else f"batches {self.batch} and {self.above.batch}"


def law_at(rows: Sequence[LrLaw], batch: float, kappa: float) -> LrLaw:
    """The law at a batch: of each batch with rows the one of the nearest kappa; between two, a power of the batch."""
    laws = {row.batch or 0: row for row in sorted(rows, key=lambda row: -abs((row.kappa or kappa) - kappa))}
    fitted = sorted(laws)
    for low, high in pairwise(fitted):
        if low < batch < high:
            return replace(laws[low], above=laws[high], share=math.log(batch / low) / math.log(high / low))
    return laws[min(fitted, key=lambda each: abs(each - batch))]


class ResonanceLaw(LrLaw):
    """6e-4, or 3e-4 for large models, times the ratio of this law to AdamW's on enoki at the same size."""

    def __call__(self, non_emb_params: float) -> float:
        usual = 6e-4 if non_emb_params < 0.8e9 else 3e-4
        return usual * super().__call__(non_emb_params) / _TABLES["enoki", 32]["adamw"][0](non_emb_params)


_TABLES: dict[tuple[str, int], dict[str, list[LrLaw]]] = {
    ("enoki", 32): {
        "adamw": [LrLaw(12.8, 1.67e4, -0.515)],
        "adamw-decaying-wd": [LrLaw(65.7, 9.83e3, -0.608)],
        "ademamix": [LrLaw(4.51, 6.71e3, -0.503)],
        "ademamix-decaying-wd": [LrLaw(7.28, 8.43e3, -0.525)],
        "d-muon": [LrLaw(2.19, 5.64e4, -0.417)],
        "adana": [
            LrLaw(12.7, 9.55e3, -0.624, 0.75),
            LrLaw(17.6, 3.66e4, -0.624, 0.80),
            LrLaw(22.5, 1.22e5, -0.618, 0.85),
            LrLaw(68.9, 2.95e4, -0.667, 0.90),
        ],
        "dana-mk4": [LrLaw(56.0, 5.71e3, -0.708, 0.75), LrLaw(23.0, 1.46e4, -0.627, 0.85)],
        "dana-star": [LrLaw(41.0, 3.03e4, -0.661, 0.75), LrLaw(223.0, 2.40e6, -0.724, 0.85)],
        "dana-star-mk4": [LrLaw(41.0, 3.03e4, -0.661, 0.75), LrLaw(223.0, 2.40e6, -0.724, 0.85)],
    },
    ("enoki", 512): {
        "adamw": [LrLaw(16.7, 1.58e7, -0.464)],
        "adana": [LrLaw(85.3, 3.04e4, -0.654, 0.85)],
        "dana-mk4": [LrLaw(2470.0, 2.24e7, -0.826, 0.85)],
        "dana-star-mk4": [LrLaw(310.0, 1.40e4, -0.701, 0.85)],
    },
    ("qwen3", 32): {
        "adamw": [LrLaw(2.16e4, 7.20e4, -0.873)],
        "adana": [LrLaw(3.17, 3.99e4, -0.553, 0.85)],
        "dana-mk4": [LrLaw(1.20, 3.44e4, -0.501, 0.85)],
        "dana-star-mk4": [LrLaw(93.9, 1.71e4, -0.701, 0.85)],
    },
    ("qwen3", 512): {},
}
"""(Architecture, batch [sequences]) -> optimizer -> its laws."""


def largest_decay(opt: str) -> float:
    """The bound of an automatic weight decay, times the peak learning rate; see `danalab.optimizer_facts`."""
    facts = facts_of(opt)
    return facts.decay_bound or (LOG_TIME_DECAY_BOUND if facts.log_time else DECAY_BOUND)


def fitted_row(arch: str, opt: str) -> tuple[str, str]:
    """The architecture and the optimizer whose row of the table at batch 32 is used, if a row is used at all."""
    table = arch if (arch, 32) in _TABLES else ("qwen3" if arch == "qwen3next" else "enoki")
    while opt not in _TABLES[table, 32]:
        rate = facts_of(opt).rate
        if rate is None and opt in _TABLES["enoki", 32]:
            return "enoki", opt
        if isinstance(rate, Usual):
            break
        opt = rate.of if rate else "adamw"
    return table, opt


def lr_law(arch: str, opt: str, kappa: float = KAPPA, batch: float = 32) -> tuple[LrLaw, str]:
    """The law that applies at a batch [sequences of 2,048 tokens], and a sentence on its source.

    A kappa without a row uses the nearest row; an architecture without a table uses a related one's, mostly enoki's
    (resonance: a common rate for AdamW, the others relative to it, both whatever the batch); an optimizer without a row
    uses a related optimizer's law times a factor, a common value (`danalab.optimizer_facts`), or, with neither of
    them, its row of enoki.

    UserError: unknown optimizer.
    """
    opt = canonical_name(opt)
    if arch == "resonance":
        law, source = lr_law("enoki", opt, kappa)
        if law.d == 0:  # independent of size, and so of architecture
            return law, source
        source = f"usual for adamw on resonance: 6e-4, from 0.8B parameters on 3e-4; times {opt}'s share of it on enoki"
        return ResonanceLaw(law.a, law.b, law.d, law.kappa, law.batch), source
    known, _ = fitted_row(arch, opt)
    if rows := [replace(row, batch=at) for at in (32, 512) for row in _TABLES[known, at].get(opt, ())]:
        law = law_at(rows, batch, kappa)
        fitted_at = f", kappa {law.kappa}" if law.kappa is not None else ""
        borrowed = f", used for {arch}" if known != arch else ""
        return law, f"fitted for {opt} on {known} at {law.batches}{fitted_at}{borrowed}"
    rate = facts_of(opt).rate or Relative("adamw", 1.0, "no rate of its own is known")
    if isinstance(rate, Usual):
        return LrLaw(rate.lr, 0.0, 0.0), f"usual for {opt} at any size; not fitted ({rate.source})"
    law, source = lr_law(arch, rate.of, kappa, batch)
    return law.times(rate.factor), f"{source}, times {rate.factor:g} for {opt} ({rate.source})"


def law_rate(
    arch: str, opt: str, non_emb_params: float, kappa: float, tokens_per_step: int
) -> tuple[float, str]:
    """(the default rate for size P: the law's, held for small models, times `batch_factor`; its source in words).

    UserError: unknown optimizer.
    """
    law, source = lr_law(arch, opt, kappa, tokens_per_step / SEQUENCE)
    if (factor := batch_factor(arch, opt, tokens_per_step)) < 1:
        law = law.times(factor)
        source += f", times {factor:.3g} for {tokens_per_step:,} tokens a step"
    least = (
        0
        if arch == "resonance" or law.d == 0
        else _LEAST_PARAMS.get(fitted_row(arch, canonical_name(opt)), 0)
    )
    if non_emb_params < least:
        source += f", held below {least / 1e6:.0f}M parameters"
    return law(max(non_emb_params, least)), source


def learning_rate(
    arch: str, opt: str, non_emb_params: float, kappa: float = KAPPA, global_batch: int = 32
) -> float:
    """Peak learning rate by the fitted law a (b + P)^d.

    Args:
        non_emb_params: P, the size law (`ModelConfig.non_emb_params`).
        kappa: the Dana family's kappa; the nearest fitted one is used.
        global_batch: sequences of 2,048 tokens per step.
    Raises:
        UserError: unknown optimizer.
    Source: arXiv 2602.05298, learning-rate scaling laws.
    """
    return lr_law(arch, opt, kappa, global_batch)[0](non_emb_params)


def decay_factor(arch: str, opt: str, non_emb_params: float, kappa: float = KAPPA, batch: int = 32) -> float:
    """The relative shrinkage of a weight per step at the peak rate, in units of weight_decay x lr.

    It is 1 with two exceptions: Prodigy's step is lr x d, with d near AdamW's learning rate; and SGD's decay is part of
    the gradient, which momentum sums ten times.
    """
    facts = facts_of(opt)
    estimated = learning_rate(arch, facts.estimates, non_emb_params, kappa, batch) if facts.estimates else 1.0
    return estimated * facts.gradient_sum


def batch_factor(arch: str, opt: str, tokens_per_step: int) -> float:
    """The best rate at a small batch in units of the law's: (tokens / 65,536)^(1/3) where a law is too high there."""
    table, row = fitted_row(arch, canonical_name(opt))
    if arch == "resonance" or row not in _FALLING_WITH_THE_BATCH.get(table, ()):
        return 1.0
    return min(1.0, (tokens_per_step / (32 * SEQUENCE)) ** (1 / 3))


def slow_momentum(steps: int, delta: float = DELTA, kappa: float = KAPPA) -> dict[str, Any]:
    """AdEMAMix's slow momentum by the ladder's rule, the window and weight of ADana's at the end of the run: settings
    `betas`, `alpha`, `alpha_warmup` and `beta3_warmup` of a run of `steps` steps.

    Its window is steps / delta, its weight steps^(1 - kappa); both grow over the whole run. With fewer steps than
    `delta` it has no effect.
    """
    betas = (0.9, 0.999, max(0.0, 1 - delta / steps))
    return {"betas": betas, "alpha": steps ** (1 - kappa), "alpha_warmup": steps, "beta3_warmup": steps}

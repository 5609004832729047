"""Learning rates of optimizers without a fitted law: a related optimizer's law times a factor, or a common value.

These are starting points for a sweep, not tuned values; each names its source. The factors are relative to AdamW's at
betas (0.9, 0.999).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relative:
    """A learning rate by another optimizer's law."""

    of: str
    factor: float
    source: str
    """Why this factor."""


@dataclass(frozen=True)
class Usual:
    """A common learning rate for all sizes."""

    lr: float
    source: str


_SAME_STEP = "its update has AdamW's size"

RELATIVES: dict[str, Relative] = {
    "dana-star": Relative("dana-star-mk4", 1.0, "the same update but for the clip"),
    "adamw-decaying-wd": Relative("adamw", 1.0, "the same update"),
    "manau": Relative("d-muon", 1.0, "the same update of matrices"),
    "ademamix": Relative("adamw", 0.43, "ratio of their fitted laws on enoki, 7M to 600M parameters"),
    "ademamix-decaying-wd": Relative("adamw", 0.47, "ratio of their fitted laws on enoki, 7M to 600M parameters"),
    "auto-dana": Relative("adana", 1.0, "the same update at its chosen kappa"),
    "sign-dana": Relative("adana", 0.1, "signs are larger than normalised updates"),
    "snoo": Relative("adamw", 1.0, "its inner optimizer"),
    "snoo-dana": Relative("dana-star-mk4", 1.0, "its inner optimizer"),
    "radam": Relative("adamw", 1.0, _SAME_STEP),
    "nadam": Relative("adamw", 1.0, _SAME_STEP),
    "adopt": Relative("adamw", 1.0, _SAME_STEP),
    "adabelief": Relative("adamw", 1.0, _SAME_STEP),
    "laprop": Relative("adamw", 1.0, _SAME_STEP),
    "stableadamw": Relative("adamw", 1.0, _SAME_STEP),
    "grams": Relative("adamw", 1.0, _SAME_STEP),
    "soap": Relative("adamw", 1.0, "arXiv 2409.11321 finds the same best rate for both"),
    "sophia": Relative("adamw", 1.0, "its authors advise AdamW's"),
    "lion": Relative("adamw", 0.2, "arXiv 2302.06675: 3 to 10 times smaller than AdamW's"),
    "tiger": Relative("adamw", 0.2, "a sign update, as Lion's"),
    "signum": Relative("adamw", 0.2, "a sign update, as Lion's"),
    "signsgd": Relative("adamw", 0.2, "a sign update, as Lion's; a short sweep agrees"),
    "mars": Relative("adamw", 3.0, "3e-3 where AdamW has 1e-3, as the reference's command line"),
    "adan": Relative("adamw", 2.0, "arXiv 2208.06677: above AdamW's"),
    "came": Relative("adamw", 0.3, "between its authors' 0.5 to 0.9 of AdamW's and a short sweep's 0.15"),
    "lamb": Relative("adamw", 3.0, "its trust ratio, norm of weights over norm of update, is small; by a short sweep"),
    "sf-adamw": Relative("adamw", 2.0, "arXiv 2405.15682: 1 to 10 times that of a schedule"),
    "adamuon": Relative("d-muon", 1.0, "the same size of update"),
    "normuon": Relative("d-muon", 1.0, "the same size of update"),
    "adam-mini": Relative("adamw", 1.0, "arXiv 2406.16793: AdamW's rate"),
    "kl-soap": Relative("adamw", 1.0, "as SOAP's"),
    "psgd-kron": Relative("adamw", 0.3, "its authors advise a third to a quarter of Adam's"),
    "soda": Relative("adamw", 1.0, "its inner optimizer"),
    "ema-nesterov": Relative("adamw", 1.0, "its inner optimizer"),
}
"""Optimizer without a row of its own -> the law it uses, with a factor."""

USUAL: dict[str, Usual] = {
    "muon": Usual(0.02, "K. Jordan et al. 2024"),
    "soda-muon": Usual(0.02, "as Muon's"),
    "dion2": Usual(0.02, "as Muon's; arXiv 2512.16928"),
    "muon-h": Usual(0.018, "arXiv 2606.16899"),
    "adam-h": Usual(0.018, "arXiv 2606.16899"),
    "scion": Usual(3.6e-4, "arXiv 2502.07529, at radii 50 and 3000"),
    "d-muon": Usual(1e-3, "as AdamW's"),
    "dana": Usual(0.5, "for gradients clipped to norm 0.5"),
    "sgd": Usual(0.3, "for momentum 0.9 and gradients clipped to norm 0.5; by a short sweep"),
    "sf-sgd": Usual(3.0, "arXiv 2405.15682: 10 times and more that of SGD"),
    "adafactor": Usual(0.03, "relative to the weights; arXiv 1804.04235 has 0.01, a short sweep 0.03"),
    "prodigy": Usual(1.0, "arXiv 2306.06101: the estimated distance takes its place"),
}
"""For optimizers with neither a row nor a related optimizer that has one."""

ESTIMATING = {"prodigy": "adamw"}
"""Optimizers that multiply their learning rate by an estimate -> the optimizer whose rate the product approximates."""

MOMENTUM_SUM = {"sgd": 10.0}
"""Optimizers that decay through a sum of gradients -> weight of a gradient in the sum, at momentum 0.9."""

"""What is known of each optimizer before it is built: its weight decay, learning rate, memory and colour. No
torch.

`danalab.optim.OPTIMIZERS` has the same names and the classes.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from danalab.tables import key_of, load

KAPPA = 0.85
DELTA = 8.0
OMEGA = 4.0
"""Strength of weight decay, as in omega / t; arXiv 2602.05298."""
DECAY_BOUND = 1.0
"""The largest automatic weight decay, times the peak learning rate: in short runs the rules start stronger
than this. The weight_decay of optimizers with coupled decay is at most this. Measured: docs/decay-law.md."""
LOG_TIME_DECAY_BOUND = 2.0
"""The same for logarithmic-time optimizers, whose steps are several times as long as their learning rate."""


@dataclass(frozen=True)
class Relative:
    """A learning rate by another optimizer's law; factors are relative to AdamW's at betas (0.9, 0.999)."""

    of: str
    factor: float
    source: str
    """Why this factor."""


@dataclass(frozen=True)
class Usual:
    """A common learning rate for all sizes."""

    lr: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One optimizer."""

    decay: Literal["independent", "coupled"] = "coupled"
    """Whether weight_decay is multiplied by the schedule factor alone, or by the learning rate."""
    decay_falls: bool = False
    """Coupled weight decay falls over time, too, by default with the run's length as `wd_ts`."""
    log_time: bool = False
    """Depends on the step count."""
    decay_bound: float | None = None
    """Of one at an address, what takes the place of `DECAY_BOUND`."""
    orthogonalises: bool = False
    """Its update of matrices is orthogonalised: its own matrix products count."""
    state_words: float = 2.0
    """Float32 values per parameter in the state."""
    rate: Relative | Usual | None = None
    """The learning rate to begin with, where no law is fitted."""
    rates: tuple[float, float, float] | None = None
    """Learning rates to try on a small model, around the best ones measured (bench/results)."""
    estimates: str = ""
    """The optimizer whose learning rate is approximated by this one's times its own estimate of a
    distance."""
    gradient_sum: float = 1.0
    """Weight of a gradient in the sum through which weight decay acts, at the default momentum."""
    color: str = ""
    marker: str = "o"


_ENOKI = "ratio of their fitted laws on enoki, 7M to 600M parameters"

FACTS: dict[str, Facts] = {
    "adamw": Facts(color="#1f77b4", rates=(4e-3, 8e-3, 1.6e-2)),
    "adana": Facts(
        decay="independent",
        log_time=True,
        color="#228B22",
        marker="D",
        rates=(1.4e-3, 2.8e-3, 5.6e-3),
    ),
    "dana-mk4": Facts(
        decay="independent", log_time=True, color="#CD853F", marker="v", rates=(2e-3, 4e-3, 8e-3)
    ),
    "dana-star": Facts(
        decay="independent",
        log_time=True,
        state_words=3.0,
        rate=Relative("dana-star-mk4", 1.0, "the same update except for the clip"),
        color="#7f7f7f",
        marker="<",
    ),
    "dana-star-mk4": Facts(
        decay="independent",
        log_time=True,
        state_words=3.0,
        color="#d62728",
        marker="^",
        rates=(2.8e-3, 5.6e-3, 1.12e-2),
    ),
    "adamw-decaying-wd": Facts(
        decay="independent",
        rate=Relative("adamw", 1.0, "the same update"),
        color="#00CED1",
        marker="s",
        rates=(7.2e-3, 1.44e-2, 2.88e-2),
    ),
    "ademamix": Facts(state_words=3.0, rate=Relative("adamw", 0.43, _ENOKI), color="#9467bd", marker="X"),
    "ademamix-decaying-wd": Facts(
        decay="independent",
        state_words=3.0,
        rate=Relative("adamw", 0.47, _ENOKI),
        color="#4B0082",
        rates=(2e-3, 4e-3, 8e-3),
    ),
    "muon": Facts(
        orthogonalises=True,
        state_words=1.3,
        rate=Usual(0.02, "K. Jordan et al. 2024"),
        color="#ff7f0e",
        marker="p",
        rates=(2e-2, 4e-2, 8e-2),
    ),
    "d-muon": Facts(
        orthogonalises=True, state_words=1.3, color="#8B4513", marker="h", rates=(8e-3, 1.6e-2, 3.2e-2)
    ),
    "dana-muon": Facts(
        orthogonalises=True,
        decay_falls=True,
        state_words=1.5,
        rate=Relative("d-muon", 3.0, "its best rates at 58k to 630k parameters are 2 to 4 times that"),
        color="#c2187a",
        marker="*",
        rates=(0.032, 0.064, 0.128),
    ),
    "manau": Facts(
        orthogonalises=True,
        decay_falls=True,
        state_words=1.5,
        rate=Relative("d-muon", 1.0, "the same update of matrices"),
        color="#e377c2",
        marker="P",
    ),
    "dana": Facts(
        decay="independent",
        log_time=True,
        state_words=1.0,
        rate=Usual(0.5, "for gradients clipped to norm 0.5"),
        color="#006d5b",
    ),
    "sign-dana": Facts(
        decay="independent",
        log_time=True,
        state_words=1.0,
        rate=Relative("adana", 0.1, "signs are larger than normalised updates"),
        color="#9acd32",
    ),
    "auto-dana": Facts(
        decay="independent",
        log_time=True,
        rate=Relative("adana", 1.0, "the same update at its chosen kappa"),
        color="#556B2F",
    ),
    "snoo": Facts(state_words=4.0, rate=Relative("adamw", 1.0, "its inner optimizer"), color="#ff9896"),
    "snoo-dana": Facts(
        decay="independent",
        log_time=True,
        state_words=5.0,
        rate=Relative("dana-star-mk4", 1.0, "its inner optimizer"),
        color="#800000",
    ),
    "sgd": Facts(
        state_words=1.0,
        gradient_sum=10.0,
        rate=Usual(0.3, "for momentum 0.9 and gradients clipped to norm 0.5; by a short sweep"),
        color="#bcbd22",
    ),
    "soap": Facts(
        state_words=9.0,  # with both sides of each matrix, and their eigenvectors
        rate=Relative("adamw", 1.4, "its best rates at 45k to 630k parameters are 1 to 2 times that"),
        color="#17becf",
        marker="*",
        rates=(8e-3, 1.6e-2, 3.2e-2),
    ),
    "lion": Facts(
        state_words=1.0,
        rate=Relative("adamw", 0.2, "arXiv 2302.06675: 3 to 10 times smaller than AdamW's"),
        color="#DAA520",
    ),
    "prodigy": Facts(
        state_words=4.0,
        estimates="adamw",
        rate=Usual(1.0, "arXiv 2306.06101: the estimated distance takes its place"),
    ),
    "sophia": Facts(rate=Relative("adamw", 1.0, "its authors advise AdamW's")),
    "adopt": Facts(rate=Relative("adamw", 1.0, "its update has AdamW's size")),
    "mars": Facts(
        state_words=3.0,
        rate=Relative("adamw", 3.0, "3e-3 where AdamW has 1e-3, as the reference's command line"),
    ),
    "adafactor": Facts(
        state_words=0.0,
        rate=Usual(0.03, "relative to the weights; arXiv 1804.04235 has 0.01, a short sweep 0.03"),
    ),
    "lamb": Facts(
        rate=Relative(
            "adamw", 3.0, "its trust ratio, norm of weights over norm of update, is small; by a short sweep"
        )
    ),
    "sf-adamw": Facts(
        rate=Relative("adamw", 2.0, "arXiv 2405.15682: 1 to 10 times that of a schedule"), color="#7EC8E3"
    ),
    "sf-sgd": Facts(state_words=1.0, rate=Usual(3.0, "arXiv 2405.15682: 10 times and more that of SGD")),
    "signsgd": Facts(
        state_words=0.0, rate=Relative("adamw", 0.2, "a sign update, as Lion's; a short sweep agrees")
    ),
    "signum": Facts(state_words=1.0, rate=Relative("adamw", 0.2, "a sign update, as Lion's")),
}
"""Name -> facts, in the order in which lists show them."""

ALIASES = {"sophiag": "sophia"}


def is_address(name: str) -> bool:
    """Whether an optimizer is named by where it is, FILE.py:NAME or module:NAME."""
    return ":" in name


def short_name(name: str) -> str:
    """An optimizer's name in that of a folder: `mine.py-Mine` of ./mine.py:Mine."""
    return Path(name).name.replace(":", "-")


def canonical_name(name: str) -> str:
    """The name in `FACTS` of any spelling; an address as it is. UserError: unknown, with the nearest."""
    return name if is_address(name) else key_of(FACTS, ALIASES.get(name.lower(), name), "optimizer")


def facts_of(name: str) -> Facts:
    """The facts of an optimizer; of one at an address, what its class or function shows. UserError: unknown."""
    if not is_address(name):
        return FACTS[canonical_name(name)]
    own = load(name)
    lr, bound = inspect.signature(own).parameters.get("lr"), getattr(own, "decay_bound", None)
    return Facts(
        decay="coupled" if bound is None else "independent",
        decay_falls=getattr(own, "falls", False),
        decay_bound=bound,
        rate=Usual(lr.default, "its own default") if lr and isinstance(lr.default, (int, float)) else None,
    )


def rates_to_try(opt: str) -> tuple[float, ...]:
    """Three learning rates to begin with on a small model: measured, or by those of the optimizer it is
    relative to."""
    facts = facts_of(opt)
    if facts.rates is not None:
        return facts.rates
    if isinstance(facts.rate, Relative):
        return tuple(facts.rate.factor * lr for lr in rates_to_try(facts.rate.of))
    centre = facts.rate.lr if isinstance(facts.rate, Usual) else 1e-3
    return centre / 2, centre, 2 * centre


def warmup_steps(steps: int) -> int:
    """Length of the warmup of a run of `steps` steps: a fiftieth, or of a short run a tenth, up to 4
    steps."""
    return max(steps // 50, min(steps // 10, 4))


def orthogonalisation_flops(rows: int, columns: int, settings: Mapping[str, Any]) -> int:
    """FLOPs of an orthogonalised update by Newton-Schulz: A = X X^T, A A, and the product with X, in each
    step."""
    short, long = sorted((rows, columns))
    return int(settings.get("ns_steps", 5)) * 2 * short * short * (2 * long + short)

"""The results of a ladder: tuned runs, laws, compute saved, notes."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from danalab.errors import UserError
from danalab.ladder.fit.curvature import Curvature, SharedCurvature, Tolerance
from danalab.ladder.fit.loss_law import LossLaw
from danalab.ladder.fit.lr_law import LRLaw
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import Tuned
from danalab.ladder.horizon.analysis import HorizonAnalysis
from danalab.ladder.runs.rows import finite
from danalab.ladder.saved.at_size import Saved
from danalab.ladder.saved.gain import Gain


@dataclass(frozen=True)
class PredictedRate:
    """The learning rate of a size by an optimizer's law."""

    non_emb_params: float
    lr: float
    interval: Interval | None
    extrapolated: bool
    """The size is outside of those measured."""
    loss_increase: float | None
    """Cost of the farther end of the interval [nats a token] by the shared curvature; None where that is not known, or
    beyond the rates tried."""


@dataclass(frozen=True)
class Analysis:
    """The results of a ladder."""

    baseline: str
    convention: str
    tuned: list[Tuned]
    excluded: list[str]
    """Runs that did not finish or whose loss is not finite; they are in no fit."""
    lr_laws: dict[str, LRLaw] = field(default_factory=dict)
    loss_laws: dict[str, LossLaw] = field(default_factory=dict)
    saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """Optimizer -> parameters -> compute saved against the baseline of that size."""
    gains: dict[str, Gain] = field(default_factory=dict)
    curvatures: dict[str, dict[int, Curvature]] = field(default_factory=dict)
    shared_curvatures: dict[str, SharedCurvature] = field(default_factory=dict)
    """Optimizer -> one curvature for all its sizes."""
    tolerances: dict[str, dict[int, Tolerance]] = field(default_factory=dict)
    """Optimizer -> parameters -> learning rates within a share of the best loss."""
    predicted_rates: dict[str, list[PredictedRate]] = field(default_factory=dict)
    horizon: HorizonAnalysis | None = None
    """None where no size has several horizons."""
    notes: list[str] = field(default_factory=list)
    """Results that are missing, and the reasons."""

    def at(self, opt: str) -> list[Tuned]:
        """An optimizer's sizes, the smallest first."""
        return sorted((each for each in self.tuned if each.opt == opt), key=lambda each: each.params)

    @property
    def opts(self) -> list[str]:
        """Optimizers, the baseline first."""
        names = dict.fromkeys(each.opt for each in self.tuned)
        return [self.baseline, *(name for name in names if name != self.baseline)]

    @property
    def compute_laws(self) -> dict[str, LossLaw]:
        """The laws of compute; none where the loss laws are of parameters and tokens."""
        return {opt: law for opt, law in self.loss_laws.items() if law.kind != "chinchilla"}

    def as_dict(self) -> dict[str, Any]:
        """Everything but curves and resamples, for JSON."""
        return finite({
            "baseline": self.baseline,
            "convention": self.convention,
            "tuned": [
                {
                    "opt": each.opt, "params": each.params, "lr": each.lr, "lr_multiplier": each.lr_multiplier,
                    "loss": each.loss, "spread": each.spread, "seeds": len(each.runs), "trials": each.trials,
                    "flops": each.flops, "tokens": each.tokens, "runs": [row["name"] for row in each.runs],
                }
                for each in self.tuned
            ],
            "excluded": self.excluded,
            "lr_laws": {
                opt: {"a": law.a, "b": law.b, "d": law.d, "sizes": law.n_sizes, "trials": law.n_trials,
                      "intervals": {name: asdict(each) for name, each in law.intervals.items()},
                      "predicted": [asdict(each) for each in self.predicted_rates.get(opt, [])]}
                for opt, law in self.lr_laws.items()
            },
            "loss_laws": {
                opt: {"kind": law.kind, **law.coefficients, "r2": law.r2, "measured": law.measured,
                      "intervals": {name: asdict(each) for name, each in law.intervals.items()}}
                for opt, law in self.loss_laws.items()
            },
            "saved": {
                opt: [{"params": params, **asdict(each)} for params, each in sizes.items()]
                for opt, sizes in self.saved.items()
            },
            "gains": {opt: asdict(gain) for opt, gain in self.gains.items()},
            "curvatures": {
                opt: [{"params": params, **asdict(each)} for params, each in sizes.items()]
                for opt, sizes in self.curvatures.items()
            },
            "shared_curvatures": {opt: asdict(each) for opt, each in self.shared_curvatures.items()},
            "tolerances": {
                opt: [{"params": params, **asdict(each)} for params, each in sizes.items()]
                for opt, sizes in self.tolerances.items()
            },
            "horizon": None if self.horizon is None else self.horizon.as_dict(),
            "notes": self.notes,
        })  # fmt: skip

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Turn an error into a note."""
        try:
            yield
        except UserError as error:
            self.notes.append(f"{what}: {error}")

"""The results of a ladder, and the studies that add to them.

    rows -> `danalab.ladder.analysis.analyse` -> Analysis, with the results of each study -> tables, figures, sentences

A study is an analysis that only some ladders need, such as that of several batches. Plug-ins add theirs to `STUDIES`;
those of `danalab_annexes` are loaded with the first analysis.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import finite
from danalab.ladder.fit.loss_law import LossLaw
from danalab.ladder.fit.rate_laws import LRLaw, SharedCurvature, Tolerance
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import Row, Tuned
from danalab.ladder.saving import Gain, Saved
from danalab.registry import Registry

Address = Callable[[Row], str]
"""Where a run's folder is, from where a table is read."""


@dataclass(frozen=True)
class PredictedRate:
    """The learning rate of a size by an optimizer's law."""

    non_emb_params: float
    lr: float
    interval: Interval | None
    extrapolated: bool
    """The size is outside of those measured."""
    loss_increase: float | None
    """Cost of the farther end of the interval [nats/token] by the shared curvature; None where that is not known, or
    beyond the rates tried."""


@dataclass(frozen=True)
class Analysis:
    """The results of a ladder."""

    baseline: str
    convention: str
    tuned: list[Tuned]
    """At one batch of each size and horizon."""
    every: list[Tuned]
    """At all batches."""
    excluded: list[str]
    """Runs that did not finish or whose loss is not finite; they are in no fit."""
    lr_laws: dict[str, LRLaw] = field(default_factory=dict)
    loss_laws: dict[str, LossLaw] = field(default_factory=dict)
    saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """Optimizer -> parameters -> compute saved against the baseline of that size."""
    tokens_saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """The same in tokens: the optimizer's own matrix products do not count."""
    resolution: dict[int, Saved] = field(default_factory=dict)
    """Parameters -> what the baseline saves against itself: 0 if curves had no noise, and the interval of no saving."""
    gains: dict[str, Gain] = field(default_factory=dict)
    shared_curvatures: dict[str, SharedCurvature] = field(default_factory=dict)
    """Optimizer -> one curvature for all its sizes."""
    tolerances: dict[str, dict[int, Tolerance]] = field(default_factory=dict)
    """Optimizer -> parameters -> learning rates within a share of the best loss."""
    predicted_rates: dict[str, list[PredictedRate]] = field(default_factory=dict)
    studies: dict[str, Any] = field(default_factory=dict)
    """Name of a study -> its results; those without are not there."""
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
        apart = {"tuned": [], "every": [], "lr_laws": {}, "loss_laws": {}, "predicted_rates": {}, "studies": {}}
        plain = {name: value for name, value in asdict(replace(self, **apart)).items() if name not in apart}
        plain["resolution"] = [{"params": params, **each} for params, each in plain["resolution"].items()]
        for name in ("saved", "tokens_saved", "tolerances"):
            plain[name] = by_size(plain[name])
        own = {name: value for study in all_studies() for name, value in study.as_dict(self).items()}
        return finite({
            **plain,
            "tuned": [each.as_dict() for each in self.tuned],
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
            **own,
        })  # fmt: skip

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Turn an error into a note."""
        try:
            yield
        except UserError as error:
            self.notes.append(f"{what}: {error}")


def by_size(values: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Optimizer -> parameters -> values, as JSON has it: a list of each optimizer's sizes."""
    return {opt: [{"params": params, **each} for params, each in own.items()] for opt, own in values.items()}


@dataclass(frozen=True)
class PageSection:
    """Figures and tables of a section of the report's page."""

    anchor: str
    heading: str
    figures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    before: str = ""
    """What a study's part precedes: the anchor of a section, or in one that is there a figure or table; "": the end."""


class LadderStudy:
    """An analysis that only some ladders need. By default each of its parts is empty."""

    name: str
    sections: tuple[PageSection, ...] = ()
    tables_before: str = ""
    """The table that its own precede where all are printed; "": they are the last."""
    folded: tuple[str, ...] = ()
    """Tables that the page folds away."""
    files: tuple[str, ...] = ()
    """Files of the ladder's folder that go with a report that is published."""

    def analyse_optimizer(self, analysis: Analysis, opt: str, rows: Sequence[Row], n_bootstrap: int, seed: int) -> None:
        """Add results of one optimizer, whose learning-rate law is fitted, to `analysis.studies` and its notes."""

    def analyse(self, analysis: Analysis, rows: Sequence[Row], n_bootstrap: int, seed: int) -> None:
        """Add results of all optimizers, before the laws of the loss are fitted."""

    def as_dict(self, analysis: Analysis) -> dict[str, Any]:
        """Its results for JSON, by keys of analysis.json."""
        return {}

    def tables(self, analysis: Analysis, address: Address | None, folder: Path | None) -> dict[str, tuple[str, Any]]:
        """Name -> (title, `danalab.report.formats.Table`); a missing result has no lines. `folder`: the ladder's."""
        return {}

    def figures(self) -> dict[str, tuple[Callable[[Any], Any], str]]:
        """File name -> (function of the `ReportData` that returns a figure or a `MissingFigure`, caption)."""
        return {}

    def sentences(self, analysis: Analysis) -> list[str]:
        """Sentences beside the verdict."""
        return []


STUDIES: Registry[LadderStudy] = Registry("study of a ladder")


def all_studies() -> list[LadderStudy]:
    """Every study, in the order in which plug-ins added them."""
    return [STUDIES.get(name) for name in STUDIES.names()]

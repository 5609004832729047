"""Preregistration: the loss of a ladder's largest rung, predicted from the others before it runs.

    FOLDER/preregistered.json      written once; the report compares it with what was measured

The prediction is a law's: E + A N^-alpha + B D^-beta where there are several sizes and horizons, else E + A C^-alpha.
Its interval contains the uncertainty of the law and the noise of the seeds to come.
"""

import datetime
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.ladder.analysis import analyse
from danalab.ladder.fit.loss_law import points_needed
from danalab.ladder.fit.statistics import Interval, noise_law, student_interval
from danalab.ladder.fit.tuning import Row, Tuned
from danalab.ladder.plan import PROCEDURES, LadderPlan, Procedure, Rung
from danalab.ladder.studies import Address, Analysis, LadderStudy, PageSection
from danalab.report.formats import Table, span, yes_or_no
from danalab.sweep.estimate import plan_of

FILE = "preregistered.json"
RESAMPLES = 400
"""For the intervals."""


@dataclass(frozen=True)
class Prediction:
    """The predicted mean final loss of an optimizer on the largest rung."""

    opt: str
    params: int
    tokens: int
    flops: float
    loss: float
    """[nats/token]"""
    interval: Interval


@dataclass(frozen=True)
class PredictionOutcome:
    """A prediction and what was measured."""

    prediction: Prediction
    loss: float | None
    """Mean over seeds; None: not measured yet."""

    @property
    def is_inside(self) -> bool | None:
        """Whether the interval contains the measured loss."""
        return None if self.loss is None else self.loss in self.prediction.interval


def largest_rung(plan: LadderPlan) -> Rung:
    """The rung of most compute."""
    return max(plan.rungs(), key=lambda rung: _plan(plan, rung, plan.opts[0]).flops)


def require_points(plan: LadderPlan) -> None:
    """Refuse, before they run, rungs whose number (in the UserError) gives no law without the largest."""
    if len(plan.batches) > 1:
        raise UserError("--preregister: laws of the loss have no axis for several batches; choose one with --batches")
    last = largest_rung(plan)
    others = [rung for rung in plan.rungs() if rung != last]
    sizes = {str(rung.size) for rung in others}
    kind = "chinchilla" if 1 < len(sizes) < len(others) else "saturated"
    if len(others) < points_needed(kind):
        raise UserError(
            f"--preregister: a {kind} law needs {points_needed(kind)} sizes and lengths besides the largest, "
            f"the file has {len(others)}; add sizes or horizons"
        )


def preregister(folder: Path, plan: LadderPlan, rows: Sequence[Row]) -> list[Prediction]:
    """Predict the largest rung from finished runs and write the file; an existing file is kept and read.

    UserError: a run of the rung has begun, or the runs give no law.
    """
    if (folder / FILE).is_file():
        return read_predictions(folder)
    rung = largest_rung(plan)
    at = {opt: _plan(plan, rung, opt) for opt in plan.opts}
    largest = {(planned.exact_params, planned.tokens) for planned in at.values()}
    begun = [row["name"] for row in rows if (row["params"], row["tokens"]) in largest]
    if begun:
        raise UserError(
            f"--preregister: {begun[0]} at the largest size and length ({rung}) has run; its loss is known already"
        )
    analysis = analyse(rows, n_bootstrap=RESAMPLES)
    made = [
        _predict(analysis, opt, planned, len(plan.seeds)) for opt, planned in at.items() if opt in analysis.loss_laws
    ]
    if not made:
        reasons = [note for note in analysis.notes if note.startswith("loss law")] or ["no run has finished"]
        raise UserError(f"--preregister: the runs give no law ({'; '.join(reasons)})")
    content = {
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rung": str(rung),
        "law": next(iter(analysis.loss_laws.values())).kind,
        "from_runs": sorted(row["name"] for each in analysis.tuned for row in each.runs),
        "predictions": [asdict(each) for each in made],
    }
    write_json(folder / FILE, content)
    return made


def read_predictions(folder: Path) -> list[Prediction]:
    """The predictions of a folder; none where there is no file."""
    file = folder / FILE
    if not file.is_file():
        return []
    return validated(_Registered, read_json(file), file).predictions


@dataclass(frozen=True)
class _Registered:
    """The part of preregistered.json that is read."""

    predictions: list[Prediction]


def outcomes(predictions: Sequence[Prediction], tuned: Sequence[Tuned]) -> list[PredictionOutcome]:
    """Each prediction beside the tuned runs of its optimizer, size and tokens."""
    measured = {(each.opt, each.params, each.tokens): each.loss for each in tuned}
    return [PredictionOutcome(each, measured.get((each.opt, each.params, each.tokens))) for each in predictions]


def _plan(plan: LadderPlan, rung: Rung, opt: str) -> Any:
    return plan_of(plan.planned(rung)[opt][0].config(Path(opt)))


def _predict(analysis: Analysis, opt: str, planned: Any, n_seeds: int) -> Prediction:
    law = analysis.loss_laws[opt]
    params, flops = planned.exact_params, float(planned.flops + (planned.optimizer_flops or 0))
    x = (params, planned.tokens) if law.kind == "chinchilla" else (flops,)
    loss = float(law(*x))
    drawn = np.log([float(sample(*x)) for sample in law.samples])
    sizes = [each for each in analysis.at(opt) if len(each.runs) > 1]
    spread = [float(np.var(np.log([row["final_loss"] for row in each.runs]), ddof=1)) for each in sizes]
    lengths = [*(each.length for each in sizes), planned.tokens / params / (sizes[0].batch or 1) if sizes else 1.0]
    freedom = [*(len(each.runs) - 1 for each in sizes), 0]
    noise = float(noise_law(lengths, [*spread, 0.0], freedom)[0][-1]) if sizes else 0.0
    error = math.sqrt(float(np.var(drawn, ddof=1)) + noise / n_seeds)
    interval = student_interval(math.log(loss), error, law.freedom).exp()
    return Prediction(opt, params, planned.tokens, flops, loss, interval)


def registered_table(outcomes: Sequence[PredictionOutcome]) -> Table:
    """A line for each optimizer."""
    lines = [
        [
            made.opt, f"{made.params:,}", f"{made.tokens:,}", f"{made.loss:.4f}", span(made.interval, ".4f"),
            "not yet" if each.loss is None else f"{each.loss:.4f}", yes_or_no(each.is_inside),
        ]
        for each in outcomes for made in [each.prediction]
    ]  # fmt: skip
    return ["optimizer", "parameters", "tokens", "predicted loss", "95% interval", "measured", "inside"], lines


class Preregistration(Procedure):
    """The largest rung waits for all others, and its loss is predicted before it runs."""

    def __init__(self, plan: LadderPlan):
        super().__init__(plan)
        require_points(plan)
        self.last_rung = largest_rung(plan)

    def before_last(self, folder: Path, rows: Sequence[Row]) -> None:
        preregister(folder, self.plan, rows)


class Registered(LadderStudy):
    """Predictions of the ladder's folder, and what was measured."""

    name = "preregistration"
    sections = (PageSection("laws", "Loss against compute", tables=("registered",)),)
    tables_before = "lr-laws"
    files = (FILE,)

    def tables(self, analysis: Analysis, address: Address | None, folder: Path | None) -> dict[str, tuple[str, Table]]:
        made = [] if folder is None else outcomes(read_predictions(folder), analysis.tuned)
        title = "Preregistered: predicted from the other sizes and lengths before the largest one ran"
        return {"registered": (title, registered_table(made))}


PROCEDURES.add("preregister", Preregistration)

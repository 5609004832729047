"""From the rows of a ladder to its answers: tuned runs, laws, compute saved at each size and between laws."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from danalab.errors import UserError, nearest
from danalab.ladder.compute import training_flops
from danalab.ladder.curvature import Curvature, fit_curvature
from danalab.ladder.gain import Gain, compute_gain
from danalab.ladder.loss_law import LossLaw, fit_joint_laws
from danalab.ladder.lr_law import LRLaw, fit_lr_law
from danalab.ladder.saved import Saved, compute_saved
from danalab.models.config import ModelConfig
from danalab.train.metrics import read_rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tuned:
    """An optimizer at a size, at its best learning rate."""

    opt: str
    params: int
    non_emb_params: int
    lr: float
    lr_multiplier: float
    runs: tuple[Row, ...]
    """One a seed."""
    trials: int
    """Learning rates that were tried here."""
    flops: float

    @property
    def loss(self) -> float:
        """Mean final loss over seeds [nats a token]."""
        return float(np.mean([row["final_loss"] for row in self.runs]))

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        losses = [row["final_loss"] for row in self.runs]
        return float(np.std(losses, ddof=1)) if len(losses) > 1 else None


@dataclass(frozen=True)
class Analysis:
    """All that a ladder says."""

    baseline: str
    convention: str
    tuned: list[Tuned]
    excluded: list[str]
    """Runs that did not finish or whose loss is not finite: counted, never fitted."""
    lr_laws: dict[str, LRLaw] = field(default_factory=dict)
    loss_laws: dict[str, LossLaw] = field(default_factory=dict)
    saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """Optimizer -> parameters -> compute saved against the baseline of that size."""
    gains: dict[str, Gain] = field(default_factory=dict)
    curvatures: dict[str, dict[int, Curvature]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What could not be computed, and why."""

    def at(self, opt: str) -> list[Tuned]:
        """An optimizer's sizes, the smallest first."""
        return sorted((each for each in self.tuned if each.opt == opt), key=lambda each: each.params)

    @property
    def opts(self) -> list[str]:
        """Optimizers, the baseline first."""
        names = dict.fromkeys(each.opt for each in self.tuned)
        return [self.baseline, *(name for name in names if name != self.baseline)]

    def as_dict(self) -> dict[str, Any]:
        """Everything but curves and resamples, ready for JSON."""
        return {
            "baseline": self.baseline,
            "convention": self.convention,
            "tuned": [
                {
                    "opt": each.opt, "params": each.params, "lr": each.lr, "lr_multiplier": each.lr_multiplier,
                    "loss": each.loss, "spread": each.spread, "seeds": len(each.runs), "trials": each.trials,
                    "flops": each.flops, "runs": [row["name"] for row in each.runs],
                }
                for each in self.tuned
            ],
            "excluded": self.excluded,
            "lr_laws": {
                opt: {"a": law.a, "b": law.b, "d": law.d, "sizes": law.n_sizes, "trials": law.n_trials,
                      "intervals": {name: asdict(each) for name, each in law.intervals.items()}}
                for opt, law in self.lr_laws.items()
            },
            "loss_laws": {
                opt: {"kind": law.kind, **law.coefficients, "r2": law.r2,
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
            "notes": self.notes,
        }  # fmt: skip


def analyse(
    rows: Sequence[Row],
    *,
    baseline: str = "adamw",
    law: str = "saturated",
    convention: str = "exact",
    n_bootstrap: int = 200,
    seed: int = 0,
) -> Analysis:
    """Fit everything that the rows allow; what they don't is a note, never a guess.

    Args:
        rows: of `read_ladder`.
        law: kind of the loss law, saturated or broken.
        convention: of compute; see `danalab.ladder.compute`.
    Raises:
        UserError: no finished run of the baseline.
    """
    usable = [row for row in rows if row["final_loss"] is not None and math.isfinite(row["final_loss"])]
    excluded = [row["name"] for row in rows if row not in usable]
    opts = list(dict.fromkeys(row["opt"] for row in usable))
    if baseline not in opts:
        have = ", ".join(opts) or "none"
        raise UserError(f"--baseline {baseline}{nearest(baseline, opts)}: no finished run of it; there are: {have}")
    tuned = _tune(usable, convention)
    found = Analysis(baseline, convention, tuned, excluded)
    for opt in found.opts:
        mine = [row for row in usable if row["opt"] == opt]
        with _noting(found, f"learning-rate law of {opt}"):
            found.lr_laws[opt] = _lr_law(mine, seed)
        found.curvatures[opt] = _curvatures(mine)
    with _noting(found, "loss laws"):
        found.loss_laws.update(_loss_laws(found, law, n_bootstrap, seed))
    for opt in found.opts[1:]:
        found.saved[opt] = _saved(found, opt, seed)
        if opt in found.loss_laws:
            with _noting(found, f"compute saved by the laws of {opt}"):
                found.gains[opt] = compute_gain(found.loss_laws[baseline], found.loss_laws[opt])
    return found


@contextlib.contextmanager
def _noting(found: Analysis, what: str) -> Iterator[None]:
    """What cannot be computed is a note that says why."""
    try:
        yield
    except UserError as error:
        found.notes.append(f"{what}: {error}")


def _tune(rows: Sequence[Row], convention: str) -> list[Tuned]:
    """For each optimizer and size the learning rate of least mean loss, among those with the most seeds."""
    cells: dict[tuple[str, int], dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row["opt"], row["params"]][row["lr"]].append(row)
    tuned = []
    for (opt, params), rates in sorted(cells.items(), key=lambda item: item[0]):
        most = max(len(runs) for runs in rates.values())
        lr, runs = min(
            ((lr, runs) for lr, runs in rates.items() if len(runs) == most),
            key=lambda item: float(np.mean([row["final_loss"] for row in item[1]])),
        )
        one = runs[0]
        flops = _flops(one, one["tokens"], convention)
        tuned.append(
            Tuned(opt, params, one["non_emb_params"], lr, one.get("lr_multiplier", 1.0), tuple(runs), len(rates), flops)
        )
    return tuned


def _flops(row: Row, tokens: float, convention: str) -> float:
    """Compute of a run at so many tokens; the rows' own for the exact convention."""
    if convention == "exact":
        return row["flops"] * tokens / row["tokens"]
    settings = row["settings"]
    shape = ModelConfig(**{
        key: settings[key]
        for key in (
            "arch", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len",
            "n_kv_heads", "attention_gate", "tied_head", "num_frequencies", "mixer",
        )
        if key in settings
    })  # fmt: skip
    return training_flops(shape, tokens, settings["seq_len"], convention)


def _lr_law(rows: Sequence[Row], seed: int) -> LRLaw:
    first = min(row["seed"] for row in rows)
    trials = [row for row in rows if row["seed"] == first]
    columns = ([row[key] for row in trials] for key in ("non_emb_params", "lr", "final_loss"))
    return fit_lr_law(*columns, seed=seed)


def _curvatures(rows: Sequence[Row]) -> dict[int, Curvature]:
    found = {}
    first = min(row["seed"] for row in rows)
    for params in sorted({row["params"] for row in rows}):
        trials = [row for row in rows if row["params"] == params and row["seed"] == first]
        try:
            found[params] = fit_curvature([row["lr"] for row in trials], [row["final_loss"] for row in trials])
        except UserError:
            continue  # fewer rates than a parabola needs: most ladders have three
    return found


def _loss_laws(found: Analysis, law: str, n_bootstrap: int, seed: int) -> dict[str, LossLaw]:
    curves, groups = {}, {}
    for opt in found.opts:
        points = [(each.flops, row["final_loss"]) for each in found.at(opt) for row in each.runs]
        compute, loss = (np.array(column, float) for column in zip(*points, strict=True))
        curves[opt], groups[opt] = (compute, loss), list(compute)
    return fit_joint_laws(curves, law, groups=groups, n_bootstrap=n_bootstrap, seed=seed)


def _saved(found: Analysis, opt: str, seed: int) -> dict[int, Saved]:
    base = {each.params: each for each in found.at(found.baseline)}
    result = {}
    for each in found.at(opt):
        if each.params not in base:
            found.notes.append(f"{opt} at {each.params:,} parameters: the baseline has no run of that size")
            continue
        with _noting(found, f"compute saved by {opt} at {each.params:,} parameters"):
            sides = [_curves(side, found.convention) for side in (base[each.params], each)]
            result[each.params] = compute_saved(*sides[0], *sides[1], seed=seed)
    return result


def _curves(tuned: Tuned, convention: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Compute and validation loss on the fixed windows, a pair of arrays a seed."""
    compute, loss = [], []
    for row in tuned.runs:
        points = [point for point in read_rows(Path(row["curve"])) if "val/loss" in point]
        if not points:
            raise UserError(f"run {row['name']} has no validation points")
        compute.append(np.array([_flops(row, point["tokens"], convention) for point in points]))
        loss.append(np.array([point["val/loss"] for point in points]))
    return compute, loss

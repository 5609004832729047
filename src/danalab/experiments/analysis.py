"""From the rows of a ladder to its results: tuned runs, laws, compute saved at each size and between laws.

A result that the rows do not allow is a note, which says what is missing.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from danalab.errors import UserError, nearest
from danalab.experiments.horizon import HorizonAnalysis, analyse_horizons
from danalab.experiments.loss_laws import LossLaw, LossPoints, fit_joint_laws
from danalab.experiments.rate_laws import LEAST_SIZES, LRLaw, fit_lr_law
from danalab.experiments.rows import Row, is_usable, validation_points
from danalab.experiments.saving import Gain, Saved, Shifts, compute_gain, compute_saved, interpolated_saving
from danalab.experiments.tuning import Redraw, Trials, Tuned, are_same_runs, flops_of, tune
from danalab.files import finite
from danalab.models.architectures import architecture
from danalab.train.config.rules import DecayRule, RateRule, Rules, SizeRule


@dataclass(frozen=True)
class Analysis:
    """The results of a ladder."""

    baseline: str
    convention: str
    rows: Sequence[Row]
    """Every run, finished or not."""
    tuned: list[Tuned]
    lr_laws: dict[str, LRLaw] = field(default_factory=dict)
    loss_laws: dict[str, LossLaw] = field(default_factory=dict)
    saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """Optimizer -> parameters -> compute saved against the baseline of that size; the baseline against itself shows
    what the comparison cannot resolve."""
    tokens_saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """The same in tokens: the optimizer's own matrix products do not count."""
    gains: dict[str, Gain] = field(default_factory=dict)
    """Optimizer -> compute saved between the laws."""
    horizon: HorizonAnalysis | None = None
    """None: no size has several horizons."""
    notes: list[str] = field(default_factory=list)

    @property
    def opts(self) -> list[str]:
        """Optimizers, the baseline first."""
        names = dict.fromkeys(each.opt for each in self.tuned)
        return [self.baseline, *(opt for opt in names if opt != self.baseline)]

    @property
    def contenders(self) -> list[str]:
        return self.opts[1:]

    @property
    def compute_laws(self) -> dict[str, LossLaw]:
        """Laws of compute; none where the loss laws are of parameters and tokens."""
        return {opt: law for opt, law in self.loss_laws.items() if law.kind != "chinchilla"}

    @property
    def failed(self) -> list[Row]:
        """Runs without a finite final loss; they are in no fit."""
        return [row for row in self.rows if not is_usable(row)]

    def at(self, opt: str) -> list[Tuned]:
        """An optimizer's rungs, by size and horizon."""
        return [each for each in self.tuned if each.opt == opt]

    def as_dict(self) -> dict[str, Any]:
        """Everything but rows, curves and redrawn laws, for JSON."""
        by_size = {
            name: {
                opt: [{"params": params, **asdict(each)} for params, each in sizes.items()]
                for opt, sizes in getattr(self, name).items()
            }
            for name in ("saved", "tokens_saved")
        }
        lr_laws = {
            opt: {
                **{name: getattr(law, name) for name in ("a", "b", "d")},
                "sizes": law.n_sizes,
                "trials": law.n_trials,
            }
            for opt, law in self.lr_laws.items()
        }
        loss_laws = {
            opt: {
                "kind": law.kind,
                **law.coefficients,
                "r2": law.r2,
                "measured": law.measured,
                "intervals": {name: asdict(each) for name, each in law.intervals.items()},
            }
            for opt, law in self.loss_laws.items()
        }
        return finite(
            {
                "baseline": self.baseline,
                "convention": self.convention,
                "tuned": [each.as_dict() for each in self.tuned],
                **by_size,
                "gains": {opt: asdict(gain) for opt, gain in self.gains.items()},
                "lr_laws": lr_laws,
                "loss_laws": loss_laws,
                "horizon": None if self.horizon is None else asdict(self.horizon),
                "excluded": [row["name"] for row in self.failed],
                "notes": self.notes,
            }
        )

    @contextlib.contextmanager
    def noting(self, what: str, opt: str = "") -> Iterator[None]:
        """Turn an error into a note on `what` (of an optimizer: those with the same error share one)."""
        try:
            yield
        except UserError as error:
            ending = f": {error}"
            for i, note in enumerate(self.notes):
                if opt and note.startswith(what) and note.endswith(ending):
                    self.notes[i] = f"{note.removesuffix(ending)}, {opt}{ending}"
                    return
            self.notes.append(f"{what}{opt}{ending}")


def analyse(
    rows: Sequence[Row],
    *,
    baseline: str | None = None,
    law: str | None = None,
    convention: str = "exact",
    joint: bool = True,
    n_bootstrap: int = 200,
    seed: int = 0,
) -> Analysis:
    """Fit everything that the rows allow; a missing result is a note.

    Args:
        rows: of `read_ladder`.
        baseline: optimizer that the others are compared with; None: adamw, or the first one that finished.
        law: kind of the loss law, saturated, broken or chinchilla; None: saturated, or chinchilla where several sizes
            have several horizons, which no law of compute alone describes.
        convention: of compute: model, or exact, with the optimizer's own matrix products.
        joint: one E for all optimizers; otherwise each law has its own.
        n_bootstrap: ladders drawn again for the intervals.
    """
    usable = [row for row in rows if is_usable(row)]
    opts = list(dict.fromkeys(row["opt"] for row in usable))
    if not opts:
        raise UserError(f"none of {len(rows)} runs has finished with a finite loss; there is nothing to fit")
    base = baseline or ("adamw" if "adamw" in opts else opts[0])
    if base not in opts:
        have = ", ".join(opts)
        raise UserError(f"--baseline {base}{nearest(base, opts)}: no finished run of it; there are: {have}")
    found = Analysis(base, convention, rows, tune(rows, convention))
    found.notes.extend(_notes(found))
    for opt in found.opts:
        with found.noting("learning-rate law of ", opt):
            # One rate at a size does not determine the best one.
            flat = [row for each in found.at(opt) if len(each.rates) > 1 for row in each.rate_trials]
            trials = ([row[key] for row in flat] for key in ("non_emb_params", "lr", "final_loss"))
            law_of_rate = fit_lr_law(*trials, n_bootstrap=n_bootstrap, seed=seed)
            found.lr_laws[opt] = law_of_rate
            if law_of_rate.n_sizes <= LEAST_SIZES:
                raise UserError(f"{law_of_rate.n_sizes} sizes give no interval; it needs 4")
    redraws = {opt: Redraw([Trials.of(each) for each in found.at(opt)]) for opt in found.opts}
    several = len({(each.opt, each.params) for each in found.tuned}) < len(found.tuned)  # horizons
    if several:
        horizon = analyse_horizons(found.tuned, redraws, base, n_bootstrap=n_bootstrap, seed=seed)
        found.notes.extend(horizon.notes)
        found = replace(found, horizon=horizon)
    if law is None:
        law = "chinchilla" if several and len({each.params for each in found.tuned}) > 1 else "saturated"
    with found.noting("loss laws"):
        found.loss_laws.update(_loss_laws(found, redraws, law, joint, n_bootstrap, seed))
    for opt in found.opts:
        _compare_at_sizes(found, opt, redraws, seed)
    for opt in found.contenders:
        if opt in found.compute_laws and base in found.compute_laws:
            gain = compute_gain(found.loss_laws[base], found.loss_laws[opt])
            between = interpolated_saving(_frontier(found, base), _frontier(found, opt))
            found.gains[opt] = replace(gain, interpolated=between)
    return found


def _notes(found: Analysis) -> list[str]:
    """What a reader must know of the rows."""
    notes = []
    usable = [row for row in found.rows if is_usable(row)]
    if parts := [row["val_share"] for row in usable if row.get("val_share", 1) < 1]:
        notes.append(
            f"{len(parts)} of {len(usable)} final losses are over a part of the validation split, {min(parts):.0%} at "
            "least; --final-eval-batches 0 evaluates all of it"
        )
    if found.convention == "exact":
        unknown = dict.fromkeys(row["opt"] for row in usable if row.get("optimizer_flops") is None)
        notes += [
            f"{opt}: FLOPs of the optimizer itself are unknown; only the model's count" for opt in unknown
        ]
    for opt in found.opts:
        tuned = found.at(opt)
        if edges := [f"{each.params:,}" for each in tuned if each.at_edge]:
            notes.append(
                f"{opt}: the best learning rate is an outermost one tried at {len(edges)} of {len(tuned)} sizes "
                f"({', '.join(edges)} parameters): a better one may lie beyond"
            )
    return notes


def _loss_laws(
    found: Analysis, redraws: Mapping[str, Redraw], law: str, joint: bool, n_bootstrap: int, seed: int
) -> dict[str, LossLaw]:
    """The laws, with one E or each its own; an optimizer with too few runs becomes a note."""
    points: dict[str, Any] = {}
    for opt in found.opts:
        runs = [(each, loss) for each in found.at(opt) for loss in each.losses]
        loss = np.array([loss for _, loss in runs])
        x: Any = np.array([each.flops for each, _ in runs])
        if law == "chinchilla":
            x = (np.array([each.params for each, _ in runs]), np.array([each.tokens for each, _ in runs]))
        with found.noting("loss law of ", opt):
            LossPoints.of(law, x, loss)  # refuses too few
            points[opt] = x, loss
    known = all(redraws[opt].freedom for opt in points)
    draws = {opt: (redraws[opt].shifts, redraws[opt].freedom) for opt in points} if known else None
    groups = [points] if joint and points else [{opt: own} for opt, own in points.items()]
    settings: Any = {"draws": draws, "n_bootstrap": n_bootstrap, "seed": seed}
    return {opt: made for group in groups for opt, made in fit_joint_laws(group, law, **settings).items()}


def _frontier(found: Analysis, opt: str) -> tuple[np.ndarray, np.ndarray]:
    """Compute and mean final loss of an optimizer's sizes."""
    sizes = found.at(opt)
    return np.array([each.flops for each in sizes]), np.array([each.loss for each in sizes])


def _compare_at_sizes(found: Analysis, opt: str, redraws: Mapping[str, Redraw], seed: int) -> None:
    """Compute and tokens saved at each size, over the longest horizon that both sides have there."""
    base = found.baseline
    places = {(each.params, each.tokens): i for i, each in enumerate(found.at(base))}
    found.saved[opt], found.tokens_saved[opt] = {}, {}
    for i, each in sorted(enumerate(found.at(opt)), key=lambda pair: (pair[1].params, pair[1].tokens)):
        j = places.get((each.params, each.tokens))
        what = f"{opt} at {each.params:,} parameters"
        if j is None:
            found.notes.append(f"{what} and {each.tokens:,} tokens: {base} has no such run")
            continue
        against = found.at(base)[j]
        if opt != base and are_same_runs(each, against):
            found.notes.append(f"{what} has {base}'s settings: they are not compared")
            continue

        def redraw(rng: np.random.Generator, n: int, i: int = i, j: int = j) -> Shifts:
            return redraws[base].shift(j, rng, n), redraws[opt].shift(i, rng, n)

        freedom = redraws[base].freedom + redraws[opt].freedom
        with found.noting(f"compute saved by {what}"):
            (base_tokens, base_compute, base_loss), (tokens, compute, loss) = (
                curves_of(side, found.convention) for side in (against, each)
            )
            how: Any = {"redraw": redraw, "freedom": freedom, "seed": seed}
            found.saved[opt][each.params] = compute_saved(base_compute, base_loss, compute, loss, **how)
            found.tokens_saved[opt][each.params] = compute_saved(base_tokens, base_loss, tokens, loss, **how)


def curves_of(tuned: Tuned, convention: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Tokens, compute and validation loss on the fixed windows, an array of each per seed."""
    tokens, compute, loss = [], [], []
    for row in tuned.runs:
        points = validation_points(row)
        if not points:
            raise UserError(f"run {row['name']} has no validation points in {row['curve']}")
        tokens.append(np.array([float(point["tokens"]) for point in points]))
        compute.append(np.array([_compute_at(row, point, convention) for point in points]))
        loss.append(np.array([point["val/loss"] for point in points]))
    return tokens, compute, loss


def _compute_at(row: Row, point: Mapping[str, Any], convention: str) -> float:
    """Compute of a run up to a point of its curve; every step has an equal part of the optimizer's own products."""
    model, steps = point.get("flops"), row["settings"].get("iterations")
    if model is None:
        return flops_of(row, point["tokens"], convention)
    share = point["step"] / steps if steps and "step" in point else point["tokens"] / row["tokens"]
    return model + (share * (row.get("optimizer_flops") or 0.0) if convention == "exact" else 0.0)


def fitted_rules(found: Analysis) -> Rules:
    """The learning-rate laws, the weight-decay strengths of the largest tuned runs, and the rule of the sizes."""
    if not found.lr_laws:
        reasons = "; ".join(note for note in found.notes if note.startswith("learning-rate law"))
        raise UserError(f"--rules: the ladder gives no learning-rate law ({reasons})")
    rates, decays, sizes = [], [], {}
    for opt, law in found.lr_laws.items():
        largest = found.at(opt)[-1].runs[0]
        arch, batch = largest["arch"] or largest["settings"].get("arch"), largest["batch"]
        if not arch or batch is None:
            raise UserError(f"--rules: run {largest['name']} does not give its architecture and batch size")
        rates.append(RateRule(arch=arch, opt=opt, global_batch=batch, a=law.a, b=law.b, d=law.d))
        if largest["settings"].get("omega") is not None:
            decays.append(DecayRule(arch=arch, opt=opt, omega=float(largest["settings"]["omega"])))
        sizes.setdefault(arch, []).extend(each.runs[0]["settings"] for each in found.at(opt))
    dimensions = [rule for arch, rows in sizes.items() if (rule := _size_rule(arch, rows)) is not None]
    return Rules(learning_rate=tuple(rates), weight_decay=tuple(decays), dimensions=tuple(dimensions))


def _size_rule(arch: str, sizes: Sequence[Mapping[str, Any]]) -> SizeRule | None:
    """The rule that all sizes of the ladder follow; None where they follow none, or have no heads."""
    names = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")
    if architecture(arch).oscillators or any(size.get(name) is None for size in sizes for name in names):
        return None
    layers, ratio = (
        max(size[a] / size[b] for size in sizes) for a, b in (("n_layers", "n_heads"), ("mlp_dim", "d_model"))
    )
    rule = SizeRule(arch=arch, head_dim=sizes[0]["head_dim"], layers_per_head=layers, mlp_ratio=ratio)
    ruled = [rule.sizes(size["n_heads"]) for size in sizes]
    same = all(a[name] == size[name] for a, size in zip(ruled, sizes, strict=True) for name in names)
    return rule if same else None

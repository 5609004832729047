"""From the rows of a ladder to its results: tuned runs, laws, compute saved at each size and between laws."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from danalab.errors import UserError, nearest
from danalab.files import finite
from danalab.ladder.batch import BatchAnalysis, analyse_batches
from danalab.ladder.budget import left_out_settings, tuned_size
from danalab.ladder.fit import tuning
from danalab.ladder.fit.curvature import (
    LossParabola,
    SharedCurvature,
    Tolerance,
    fit_curvature,
    fit_shared_curvature,
    fit_tolerance,
)
from danalab.ladder.fit.loss_fit import fit_joint_laws
from danalab.ladder.fit.loss_law import LossLaw, LossPoints
from danalab.ladder.fit.rate_laws import LEAST_SIZES, ExponentLaw, LRLaw, fit_exponents, fit_lr_law
from danalab.ladder.fit.statistics import Interval
from danalab.ladder.fit.tuning import horizon_of
from danalab.ladder.horizon import HorizonAnalysis, analyse_horizons
from danalab.ladder.rows import validation_points
from danalab.ladder.saving import Gain, Saved, compute_gain, compute_saved, interpolated_saving
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.shape import GPT2_VOCAB
from danalab.train.config.rules import DecayRule, RateRule, Rules, SizeRule

PREDICTED = (2.0, 4.0, 10.0)
"""Default sizes for predicted learning rates, as multiples of the largest one measured."""
_CHOICES = 1000  # number of times that a learning rate is chosen again, for the intervals at each size


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
    tuned: list[tuning.Tuned]
    excluded: list[str]
    """Runs that did not finish or whose loss is not finite; they are in no fit."""
    lr_laws: dict[str, LRLaw] = field(default_factory=dict)
    rate_exponents: dict[str, ExponentLaw] = field(default_factory=dict)
    decay_exponents: dict[str, ExponentLaw] = field(default_factory=dict)
    """Optimizer -> exponents of the best learning rate, and of the best strength of weight decay where that varied."""
    loss_laws: dict[str, LossLaw] = field(default_factory=dict)
    saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """Optimizer -> parameters -> compute saved against the baseline of that size."""
    tokens_saved: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """The same in tokens: the optimizer's own matrix products do not count."""
    resolution: dict[int, Saved] = field(default_factory=dict)
    """Parameters -> what the baseline saves against itself: 0 if curves had no noise, and the interval of no saving."""
    gains: dict[str, Gain] = field(default_factory=dict)
    curvatures: dict[str, dict[int, LossParabola]] = field(default_factory=dict)
    shared_curvatures: dict[str, SharedCurvature] = field(default_factory=dict)
    """Optimizer -> one curvature for all its sizes."""
    tolerances: dict[str, dict[int, Tolerance]] = field(default_factory=dict)
    """Optimizer -> parameters -> learning rates within a share of the best loss."""
    predicted_rates: dict[str, list[PredictedRate]] = field(default_factory=dict)
    horizon: HorizonAnalysis | None = None
    """None where no size has several horizons."""
    batches: BatchAnalysis | None = None
    """None where no size and horizon has several batches; all else but the exponents is at one batch of these."""
    notes: list[str] = field(default_factory=list)
    """Results that are missing, and the reasons."""

    def at(self, opt: str) -> list[tuning.Tuned]:
        """An optimizer's sizes, the smallest first."""
        return sorted((each for each in self.tuned if each.opt == opt), key=lambda each: each.params)

    @property
    def every(self) -> list[tuning.Tuned]:
        """The tuned runs of all batches."""
        return self.tuned if self.batches is None else self.batches.tuned

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
        apart = {"tuned": [], "lr_laws": {}, "loss_laws": {}, "predicted_rates": {}, "horizon": None, "batches": None}
        plain = {name: value for name, value in asdict(replace(self, **apart)).items() if name not in apart}
        plain["resolution"] = [{"params": params, **each} for params, each in plain["resolution"].items()]
        for name in ("saved", "tokens_saved", "curvatures", "tolerances"):
            sizes = plain[name].items()
            plain[name] = {opt: [{"params": params, **each} for params, each in own.items()] for opt, own in sizes}
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
            "horizon": None if self.horizon is None else self.horizon.as_dict(),
            "batches": None if self.batches is None else self.batches.as_dict(),
        })  # fmt: skip

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Turn an error into a note."""
        try:
            yield
        except UserError as error:
            self.notes.append(f"{what}: {error}")


def analyse(
    rows: Sequence[tuning.Row],
    *,
    baseline: str | None = None,
    law: str | None = None,
    convention: str = "exact",
    joint: bool = True,
    predict: Sequence[float] = (),
    within: float = 0.01,
    n_bootstrap: int = 200,
    seed: int = 0,
) -> Analysis:
    """Fit everything that the rows allow; a missing result is a note.

    Args:
        rows: of `read_ladder`.
        baseline: optimizer that the others are compared with; None: adamw, or the first one that finished.
        law: kind of the loss law, saturated, broken or chinchilla; None: saturated, or chinchilla where several sizes
            have several horizons, which no law of compute alone describes.
        convention: of compute; see `danalab.ladder.fit.Convention`.
        joint: one E for all optimizers; otherwise each law has its own.
        predict: sizes [parameters without embeddings] for which to predict learning rates; default: multiples of
            the largest.
        within: share of the best loss for the intervals of learning rates.
    """
    usable = [row for row in rows if tuning.is_usable(row)]
    excluded = [row["name"] for row in rows if not tuning.is_usable(row)]
    opts = list(dict.fromkeys(row["opt"] for row in usable))
    if not opts:
        raise UserError(f"none of {len(rows)} runs has finished with a finite loss; there is nothing to fit")
    base = baseline or ("adamw" if "adamw" in opts else opts[0])
    if base not in opts:
        have = ", ".join(opts)
        raise UserError(f"--baseline {base}{nearest(base, opts)}: no finished run of it; there are: {have}")
    tuned = tuning.tune(usable, convention, [row for row in rows if tuning.has_diverged(row)])
    tuned, batches = analyse_batches(tuned, rows, base, n_bootstrap=n_bootstrap, seed=seed)
    horizon = analyse_horizons(tuned, rows, base, n_bootstrap=n_bootstrap, seed=seed)
    analysis = Analysis(base, convention, tuned, excluded, horizon=horizon, batches=batches)
    if batches is not None:
        kept = ", ".join(map(str, sorted({each.batch for each in tuned})))
        analysis.notes.append(
            f"several batches at equal tokens: all but batches and exponents is at that of {base}'s least loss, {kept}"
        )
    if parts := [row["val_share"] for row in usable if row.get("val_share", 1) < 1]:
        analysis.notes.append(
            f"{len(parts)} of {len(usable)} final losses are over a part of the validation split, {min(parts):.0%} at "
            "least; --final-eval-batches 0 evaluates all of it"
        )
    if convention == "exact":
        unknown = dict.fromkeys(row["opt"] for row in usable if row.get("optimizer_flops") is None)
        analysis.notes.extend(
            f"{opt}: the matrix products of the optimizer itself are not known; its compute is the model's alone"
            for opt in unknown
        )
    analysis.notes.extend(left_out_settings(tuned, rows))
    for opt in analysis.opts:
        _sensitivity(analysis, opt, rows, within)
        with analysis.noting(f"learning-rate law of {opt}"):
            analysis.lr_laws[opt] = _rate_law(analysis, opt, usable, n_bootstrap, seed)
            analysis.predicted_rates[opt] = _predictions(analysis, opt, predict)
        add_exponents(analysis, opt, rows, n_bootstrap, seed)
    retunings = {opt: _retuning(analysis, opt, usable) for opt in analysis.opts}
    if horizon is not None:
        analysis.notes.extend(horizon.notes)
    if law is None:
        law = "chinchilla" if horizon is not None and len({each.params for each in tuned}) > 1 else "saturated"
    with analysis.noting("loss laws"):
        analysis.loss_laws.update(_loss_laws(analysis, retunings, law, joint, n_bootstrap, seed))
    analysis.resolution.update(_saved(analysis, base, retunings, seed)[0])
    for opt in analysis.opts[1:]:
        analysis.saved[opt], analysis.tokens_saved[opt] = _saved(analysis, opt, retunings, seed)
        if law != "chinchilla" and opt in analysis.loss_laws and base in analysis.loss_laws:
            with analysis.noting(f"compute saved by the laws of {opt}"):
                gain = compute_gain(analysis.loss_laws[base], analysis.loss_laws[opt])
                between = interpolated_saving(_frontier(analysis, base), _frontier(analysis, opt))
                analysis.gains[opt] = replace(gain, interpolated=between)
    return analysis


def _sensitivity(analysis: Analysis, opt: str, rows: Sequence[tuning.Row], within: float) -> None:
    """How an optimizer's loss depends on its learning rate, at each size and at all."""
    tuned = analysis.at(opt)
    usable = [row for row in rows if tuning.is_usable(row)]
    curves = []
    analysis.curvatures[opt], analysis.tolerances[opt] = {}, {}
    for each in tuned:
        runs, lost = tuning.rate_trials(usable, each), tuning.diverged_trials(rows, each)
        lr = [row["lr"] for row in (*runs, *lost)]
        loss = [*(row["final_loss"] for row in runs), *(math.inf for _ in lost)]
        curves.append((lr, loss))
        with contextlib.suppress(UserError):  # fewer rates than a parabola needs: most ladders have three
            analysis.curvatures[opt][each.params] = fit_curvature(lr, loss)
        with contextlib.suppress(UserError):  # nothing was tuned at this size
            analysis.tolerances[opt][each.params] = fit_tolerance(lr, loss, within)
    edges = [each.params for each in tuned if each.at_edge]
    if edges:
        analysis.notes.append(
            f"{opt}: the best learning rate is an outermost one tried at {len(edges)} of {len(tuned)} sizes "
            f"({', '.join(f'{params:,}' for params in edges)} parameters): a better one may lie beyond"
        )
    if any(len(each.rates) > 1 for each in tuned):
        with analysis.noting(f"sensitivity of {opt} to the learning rate"):
            analysis.shared_curvatures[opt] = fit_shared_curvature(curves)


def _rate_law(analysis: Analysis, opt: str, usable: Sequence[tuning.Row], n_bootstrap: int, seed: int) -> LRLaw:
    """The law of an optimizer's learning rate, over the trials of all sizes."""
    trials = [tuning.rate_trials(usable, each) for each in analysis.at(opt)]
    # One rate at a size does not determine the best one.
    flat = [row for runs in trials for row in runs if len({row["lr"] for row in runs}) > 1]
    if not flat:
        raise UserError("one learning rate was tried at each size; its law needs two or more at 3 sizes")
    sizes, lr, loss = ([row[key] for row in flat] for key in ("non_emb_params", "lr", "final_loss"))
    law = fit_lr_law(sizes, lr, loss, n_bootstrap=n_bootstrap, seed=seed)
    if law.n_sizes <= LEAST_SIZES:
        analysis.notes.append(
            f"learning-rate law of {opt}: {law.n_sizes} sizes give its three coefficients and no interval; "
            f"{LEAST_SIZES + 1} are needed"
        )
    return law


def add_exponents(
    analysis: Analysis, opt: str, rows: Sequence[tuning.Row], n_bootstrap: int = 200, seed: int = 0
) -> None:
    """Exponents of an optimizer's best rate and strength of weight decay; none where nothing was tuned."""
    tuned = [each for each in analysis.every if each.opt == opt]
    firsts = [each.runs[0] for each in tuned]
    axes = {
        "P": [row["non_emb_params"] for row in firsts],
        "f": [horizon_of(row) for row in firsts],
        "T": [(row.get("batch") or 1) * (row["settings"].get("seq_len") or 1) for row in firsts],
    }
    for dial, laws in (("lr", analysis.rate_exponents), ("omega", analysis.decay_exponents)):
        with contextlib.suppress(UserError):
            sizes = [tuned_size(each, rows, dial) for each in tuned]
            laws[opt] = law = fit_exponents(axes, sizes, n_bootstrap=n_bootstrap, seed=seed)
            if not law.intervals:
                what = {"lr": "the best learning rate", "omega": "the best weight-decay strength"}[dial]
                analysis.notes.append(
                    f"{opt}: the exponents of {what} have no interval: {law.n_rungs} rungs, the best value at the edge "
                    f"of its grid on {law.n_at_edge}"
                )


def _predictions(analysis: Analysis, opt: str, sizes: Sequence[float]) -> list[PredictedRate]:
    """Learning rates by an optimizer's law at these sizes, or at multiples of the largest one measured."""
    law, curvature = analysis.lr_laws[opt], analysis.shared_curvatures.get(opt)
    measured, predicted = [each.non_emb_params for each in analysis.at(opt)], []
    for size in sizes or [factor * max(measured) for factor in PREDICTED]:
        lr, cost = float(law(size)), None
        interval = law.interval(size) if law.samples else None
        if interval is not None and curvature is not None and curvature.is_known:
            farther = max(interval.high / lr, lr / interval.low) if interval.low > 0 else math.inf
            cost = curvature.loss_increase(farther) if farther <= curvature.span else None
        extrapolated = not min(measured) <= size <= max(measured)
        predicted.append(PredictedRate(size, lr, interval, extrapolated, cost))
    return predicted


def _loss_laws(
    analysis: Analysis,
    retunings: Mapping[str, tuning.Retuning | None],
    law: str,
    joint: bool,
    n_bootstrap: int,
    seed: int,
) -> dict[str, LossLaw]:
    """The laws, with one E or each its own; an optimizer with too few runs becomes a note."""
    fitted, groups = {}, {}
    resamplers = {opt: again.losses for opt, again in retunings.items() if again is not None}
    for opt in analysis.opts:
        runs = [(each, row["final_loss"]) for each in analysis.at(opt) for row in each.runs]
        groups[opt] = [(each.params, each.tokens) if law == "chinchilla" else (each.flops,) for each, _ in runs]
        columns = [np.array(column, float) for column in zip(*groups[opt], strict=True)]
        x, loss = tuple(columns) if law == "chinchilla" else columns[0], np.array([loss for _, loss in runs])
        with analysis.noting(f"loss law of {opt}"):
            LossPoints.of("", law, x, loss)  # refuses too few
            fitted[opt] = x, loss
    together = [fitted] if joint and fitted else [{opt: points} for opt, points in fitted.items()]
    settings: Any = {"groups": groups, "resamplers": resamplers, "n_bootstrap": n_bootstrap, "seed": seed}
    return {opt: made for points in together for opt, made in fit_joint_laws(points, law, **settings).items()}


def _frontier(analysis: Analysis, opt: str) -> tuple[np.ndarray, np.ndarray]:
    """Compute and mean final loss of an optimizer's sizes."""
    sizes = analysis.at(opt)
    return np.array([each.flops for each in sizes]), np.array([each.loss for each in sizes])


def _retuning(analysis: Analysis, opt: str, rows: Sequence[tuning.Row]) -> tuning.Retuning | None:
    sizes = []
    for each in analysis.at(opt):
        seeds = sorted(each.runs, key=lambda row: row["seed"])
        tried = tuning.rate_trials(rows, each)
        repeats = tried[0]["trial_seeds"]
        trials = {row["lr"]: row["final_loss"] for row in tried}
        own = np.array([row["final_loss"] for row in seeds])
        trials[each.lr] = own[:repeats].mean()
        rates = sorted(trials)
        losses = np.array([trials[lr] for lr in rates])
        sizes.append(tuning.TunedSize(np.array(rates), losses, rates.index(each.lr), own, repeats, each.length))
    return tuning.retuned(sizes)


def _saved(
    analysis: Analysis, opt: str, retunings: Mapping[str, tuning.Retuning | None], seed: int
) -> tuple[dict[int, Saved], dict[int, Saved]]:
    """Compute and tokens saved at each size, over the longest horizon that both sides have there."""

    def choice(name: str, index: int) -> tuning.SelectionNoise | None:
        again = retunings[name]
        return None if again is None else again.selection(index, _CHOICES, np.random.default_rng([seed, index]))

    base = {(each.params, each.tokens): (i, each) for i, each in enumerate(analysis.at(analysis.baseline))}
    compute, tokens = {}, {}
    for i, each in sorted(enumerate(analysis.at(opt)), key=lambda pair: pair[1].tokens):
        j, against = base.get((each.params, each.tokens), (-1, None))
        if against is None:
            analysis.notes.append(
                f"{opt} at {each.params:,} parameters and {each.tokens:,} tokens: {analysis.baseline} has no such run"
            )
            continue
        if opt != analysis.baseline and tuning.are_same_runs(each, against):
            analysis.notes.append(
                f"{opt} at {each.params:,} parameters has {analysis.baseline}'s settings: they are not compared"
            )
            continue
        with analysis.noting(f"compute saved by {opt} at {each.params:,} parameters"):
            (base_tokens, *against_base), (own_tokens, *own) = (
                _curves(side, analysis.convention) for side in (against, each)
            )
            choices: Any = {"baseline_choice": choice(analysis.baseline, j), "contender_choice": choice(opt, i)}
            compute[each.params] = compute_saved(*against_base, *own, **choices, seed=seed)
            per_token = np.concatenate([*against_base[0], *own[0]]) / np.concatenate([*base_tokens, *own_tokens])
            tokens[each.params] = (
                compute[each.params] if np.ptp(per_token) < 1e-9 * per_token[0]
                else compute_saved(base_tokens, against_base[1], own_tokens, own[1], **choices, seed=seed)
            )  # fmt: skip
    return dict(sorted(compute.items())), dict(sorted(tokens.items()))


def _curves(tuned: tuning.Tuned, convention: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
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


def _compute_at(row: tuning.Row, point: Mapping[str, Any], convention: str) -> float:
    """Compute of a run up to a point of its curve; every step has an equal part of the optimizer's own products."""
    model, steps = point.get("flops"), row["settings"].get("iterations")
    if model is None or convention not in ("exact", "model"):
        return tuning.flops_of(row, point["tokens"], convention)
    share = point["step"] / steps if steps and "step" in point else point["tokens"] / row["tokens"]
    return model + (share * (row.get("optimizer_flops") or 0.0) if convention == "exact" else 0.0)


def fitted_rules(analysis: Analysis) -> Rules:
    """The learning-rate laws, the weight-decay strengths of the largest tuned runs, and the rule of the sizes."""
    if not analysis.lr_laws:
        reasons = "; ".join(note for note in analysis.notes if note.startswith("learning-rate law"))
        raise UserError(f"--rules: the ladder gives no learning-rate law ({reasons})")
    rates, decays, sizes = [], [], {}
    for opt, law in analysis.lr_laws.items():
        largest = analysis.at(opt)[-1].runs[0]
        arch = largest["arch"] or largest["settings"].get("arch")
        if not arch:
            raise UserError(f"--rules: run {largest['name']} does not give its architecture")
        if largest["batch"] is None:
            raise UserError(f"--rules: run {largest['name']} does not give its batch size")
        rates.append(RateRule(arch=arch, opt=opt, global_batch=largest["batch"], a=law.a, b=law.b, d=law.d))
        if largest["settings"].get("omega") is not None:
            decays.append(DecayRule(arch=arch, opt=opt, omega=float(largest["settings"]["omega"])))
        sizes.setdefault(arch, []).extend(each.runs[0]["settings"] for each in analysis.at(opt))
    dimensions = [rule for arch, rows in sizes.items() if (rule := _size_rule(arch, rows)) is not None]
    return Rules(learning_rate=tuple(rates), weight_decay=tuple(decays), dimensions=tuple(dimensions))


def _size_rule(arch: str, sizes: Sequence[Mapping[str, Any]]) -> SizeRule | None:
    """The rule that all sizes of the ladder follow; None where they follow none, or have no heads."""
    names = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")
    if ARCHITECTURES.get(arch).oscillators or any(size.get(name) is None for size in sizes for name in names):
        return None
    layers, ratio = (
        max(size[a] / size[b] for size in sizes) for a, b in (("n_layers", "n_heads"), ("mlp_dim", "d_model"))
    )
    rule = SizeRule(arch=arch, head_dim=sizes[0]["head_dim"], layers_per_head=layers, mlp_ratio=ratio)
    ruled = [rule.dimensions(size["n_heads"], GPT2_VOCAB) for size in sizes]
    same = all(getattr(a, name) == size[name] for a, size in zip(ruled, sizes, strict=True) for name in names)
    return rule if same else None

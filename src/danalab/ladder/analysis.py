"""From the rows of a ladder to its results: tuned runs, laws, compute saved at each size and between laws."""

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from danalab.errors import UserError, nearest
from danalab.ladder.fit import tuning
from danalab.ladder.fit.loss_fit import fit_joint_laws
from danalab.ladder.fit.loss_law import LossLaw, LossPoints
from danalab.ladder.fit.rate_laws import LEAST_SIZES, LRLaw, fit_lr_law, fit_shared_curvature, fit_tolerance
from danalab.ladder.rows import validation_points
from danalab.ladder.saving import Saved, compute_gain, compute_saved, interpolated_saving
from danalab.ladder.studies import Analysis, PredictedRate, all_studies
from danalab.models.architectures import architecture
from danalab.sweep.rows import has_diverged, is_usable, optimizer_settings_of
from danalab.train.config.rules import DecayRule, RateRule, Rules, SizeRule

PREDICTED = (2.0, 4.0, 10.0)
"""Default sizes for predicted learning rates, as multiples of the largest one measured."""
_CHOICES = 1000  # number of times that a learning rate is chosen again, for the intervals at each size


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
    usable = [row for row in rows if is_usable(row)]
    excluded = [row["name"] for row in rows if not is_usable(row)]
    opts = list(dict.fromkeys(row["opt"] for row in usable))
    if not opts:
        raise UserError(f"none of {len(rows)} runs has finished with a finite loss; there is nothing to fit")
    base = baseline or ("adamw" if "adamw" in opts else opts[0])
    if base not in opts:
        have = ", ".join(opts)
        raise UserError(f"--baseline {base}{nearest(base, opts)}: no finished run of it; there are: {have}")
    every = tuning.tune(usable, convention, [row for row in rows if has_diverged(row)])
    tuned, rungs = tuning.at_one_batch(every, base), tuning.rungs_of(every)
    analysis, studies = Analysis(base, convention, tuned, list(itertools.chain(*rungs)), excluded), all_studies()
    if len(tuned) < len(every):
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
        for study in studies:
            study.analyse_optimizer(analysis, opt, rows, n_bootstrap, seed)
    retunings = {opt: _retuning(analysis, opt, usable) for opt in analysis.opts}
    for study in studies:
        study.analyse(analysis, rows, n_bootstrap, seed)
    if law is None:
        sizes = {each.params for each in tuned}
        several = len({(each.opt, each.params) for each in tuned}) < len(tuned)  # horizons
        law = "chinchilla" if several and len(sizes) > 1 else "saturated"
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


def left_out_settings(tuned: Sequence[tuning.Tuned], rows: Sequence[tuning.Row]) -> list[str]:
    """Sentences on the sizes that have a setting, tuned at smaller ones, at none of the values that were tried there.

    Weight decay is left out, which rules move with the size and the horizon.
    """
    sentences = []
    for opt in dict.fromkeys(each.opt for each in tuned):
        tried: dict[str, list[Any]] = {}
        beside: dict[tuple[str, str], list[int]] = defaultdict(list)
        for each in sorted((each for each in tuned if each.opt == opt), key=lambda each: (each.params, each.tokens)):
            rung = tuning.rung_of(each.runs[0])
            here = [row for row in rows if is_usable(row) and tuning.rung_of(row) == rung]
            for name, values in tried.items():
                own = [_setting(row, name) for row in here]
                if not any(value in values for value in own):
                    beside[name, tuning.as_text(own[0])].append(each.params)
            for name in set().union(*map(tuning.differing_settings, here)) - {"lr", "omega"}:
                values = [_setting(row, name) for row in here]
                if any(value != values[0] for value in values):
                    tried[name] = [*tried.get(name, []), *values]
        for (name, value), sizes in beside.items():
            known = ", ".join(sorted(set(map(tuning.as_text, tried[name]))))
            sentences.append(
                f"{opt}: {name} is {value} at {', '.join(f'{size:,}' for size in dict.fromkeys(sizes))} parameters; "
                f"smaller sizes tuned it, over {known}: the larger ones are not of the same optimizer"
            )
    return sentences


def _setting(row: tuning.Row, name: str) -> Any:
    """The value of a row's setting, or the optimizer's default."""
    if (value := tuning.value_of(row, name)) is None:
        known = row.get("optimizer_settings") or optimizer_settings_of(row["opt"], row["settings"]) or {}
        value = known.get(name)
    return value


def _sensitivity(analysis: Analysis, opt: str, rows: Sequence[tuning.Row], within: float) -> None:
    """How an optimizer's loss depends on its learning rate, at each size and at all."""
    tuned, curves = analysis.at(opt), []
    analysis.tolerances[opt] = {}
    for each in tuned:
        lr, loss = tuning.losses_by_rate(rows, each)
        curves.append((lr, loss))
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
    if architecture(arch).oscillators or any(size.get(name) is None for size in sizes for name in names):
        return None
    layers, ratio = (
        max(size[a] / size[b] for size in sizes) for a, b in (("n_layers", "n_heads"), ("mlp_dim", "d_model"))
    )
    rule = SizeRule(arch=arch, head_dim=sizes[0]["head_dim"], layers_per_head=layers, mlp_ratio=ratio)
    ruled = [rule.sizes(size["n_heads"]) for size in sizes]
    same = all(a[name] == size[name] for a, size in zip(ruled, sizes, strict=True) for name in names)
    return rule if same else None

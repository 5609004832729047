"""From rows to tuned runs: the settings of least mean loss for each optimizer, size, horizon and batch.

A ladder tries several learning rates with one seed, takes the best, and repeats it with other seeds. The chosen run is
the luckiest of its trials, and not always the best rate; intervals that keep the choice are too narrow. So a resample
(`Retuning`) draws new noise for every trial, chooses again, and draws the seeds at the rate chosen (the
loss of a trial with several seeds is their mean):

    loss of a trial = L* + k log(lr / lr*)^2 + noise,   k shared by all sizes, noise by its law (`noise_law`)
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from danalab.errors import UserError, nearest
from danalab.ladder.fit import Convention
from danalab.ladder.fit.rate_laws import fit_shared_curvature
from danalab.ladder.fit.statistics import SelectionNoise, noise_law
from danalab.scaling.dimensions import flops_per_token, matrix_params
from danalab.scaling.learning_rate import CHINCHILLA
from danalab.scaling.optimizers import OMEGA
from danalab.scaling.shape import Shape, attention_layers
from danalab.sweep.rows import has_diverged, is_usable, shape_of
from danalab.train.config.experiment import shared_settings
from danalab.train.config.fields import names_of
from danalab.train.config.train_config import TrainConfig

Row = Mapping[str, Any]

_SHAPE = ("arch", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "vocab_size", "seq_len")
"""Settings that determine the FLOPs of every model."""
_FOLLOW_THE_RATE = ("lr", "weight_decay", "wd_ts")
"""Settings that differ between the trials of a learning rate; decay is given as a share of it."""
_DEFAULTS = {**TrainConfig().as_dict(), **shared_settings({"omega": OMEGA})}
_SAME_RUN = names_of(TrainConfig, "input", "execution", "job") | {"seed", "data_seed"}


@dataclass(frozen=True)
class Tuned:
    """An optimizer at a size, horizon and batch, at its best settings."""

    opt: str
    params: int
    non_emb_params: int
    lr: float
    lr_multiplier: float | None
    """Factor on the fitted law's learning rate; None where the law is not known (imported runs)."""
    runs: tuple[Row, ...]
    """One per seed."""
    trials: int
    """Number of settings tried here: learning rates, and all else that varied."""
    rates: tuple[float, ...]
    """Learning rates tried with these runs' other settings, ascending."""
    flops: float
    all_rates: tuple[float, ...]
    """Learning rates tried here with any settings, ascending."""

    @property
    def tokens(self) -> int:
        """Tokens that each run saw."""
        return self.runs[0]["tokens"]

    @property
    def batch(self) -> int:
        """Sequences per step; 0 where the rows do not say."""
        return self.runs[0].get("batch") or 0

    @property
    def length(self) -> float:
        """Steps of each run per parameter, up to a factor that all runs of a ladder share."""
        return self.tokens / self.params / max(self.batch, 1)

    @property
    def at_edge(self) -> bool:
        """Whether the best learning rate is an outermost one of several: a better one may lie beyond."""
        return len(self.rates) > 1 and self.lr in (self.rates[0], self.rates[-1])

    @property
    def bracket(self) -> str:
        """edge, one rate, or nothing: whether the best learning rate lacks a neighbour that was tried on some side."""
        if len(self.all_rates) < 2:
            return "one rate"
        return "edge" if self.at_edge or self.lr in (self.all_rates[0], self.all_rates[-1]) else ""

    @property
    def loss(self) -> float:
        """Mean final loss over seeds [nats/token]."""
        return float(np.mean([row["final_loss"] for row in self.runs]))

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        losses = [row["final_loss"] for row in self.runs]
        return float(np.std(losses, ddof=1)) if len(losses) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Its numbers and the names of its runs, for JSON."""
        return {
            "opt": self.opt, "params": self.params, "batch": self.batch or None, "lr": self.lr,
            "lr_multiplier": self.lr_multiplier, "loss": self.loss, "spread": self.spread, "seeds": len(self.runs),
            "trials": self.trials, "flops": self.flops, "tokens": self.tokens,
            "runs": [row["name"] for row in self.runs],
        }  # fmt: skip


def rung_of(row: Row) -> tuple[str, int, int, int]:
    """Optimizer, size, tokens and batch: runs of one rung are tuned together."""
    return row["opt"], row["params"], row["tokens"], row.get("batch") or 0


def horizon_of(row: Row) -> float:
    """f = tokens / (20 parameters), by the count of --horizon-basis; rounded steps are ignored."""
    computed = row["tokens"] / (CHINCHILLA * (row.get("total_params") or row["params"]))
    asked = (row["settings"].get("tokens_per_param") or 0) / CHINCHILLA
    return asked if abs(computed - asked) <= 0.05 * asked else computed


def tune(rows: Sequence[Row], convention: str, diverged: Sequence[Row] = ()) -> list[Tuned]:
    """The tuned runs, in the order of optimizer, size, horizon and batch; `rows` are the usable ones.

    Runs that differ only in seeds are repeats of one trial. The trial of least mean loss is taken among those with the
    most seeds: one lucky seed does not beat the mean of three. Runs that `diverged` count as trials and bound the best
    rate. `convention`: of compute, see `danalab.ladder.fit.Convention`.
    """
    cells: dict[tuple[str, int, int, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[rung_of(row)][_trial(row)].append(row)
    tuned = []
    for (opt, params, tokens, _), trials in sorted(cells.items(), key=lambda item: item[0]):
        most = max(map(len, trials.values()))
        repeated = [runs for runs in trials.values() if len(runs) == most]
        runs = min(repeated, key=lambda runs: float(np.mean([row["final_loss"] for row in runs])))
        one = runs[0]
        lost = [row for row in diverged if is_beside(row, one)]
        tried = {*trials, *map(_trial, lost)}
        firsts = [*(each[0] for each in trials.values()), *lost]
        rates, every = (tuple(sorted({each["lr"] for each in some})) for some in (_at_any_rate(firsts, one), firsts))
        own = (opt, params, one["non_emb_params"], one["lr"], one["lr_multiplier"], tuple(runs))
        tuned.append(Tuned(*own, len(tried), rates, flops_of(one, tokens, convention), every))
    return tuned


def rungs_of(tuned: Sequence[Tuned]) -> list[list[Tuned]]:
    """The tuned runs of each size and horizon, by optimizer and batch. Steps are rounded: tokens to 5% are equal."""
    rungs: dict[int, list[list[Tuned]]] = defaultdict(list)
    for each in sorted(tuned, key=lambda each: each.tokens):
        groups = rungs[each.params]
        if not groups or each.tokens > 1.05 * groups[-1][0].tokens:
            groups.append([])
        groups[-1].append(each)
    by_batch = lambda each: (each.opt, each.batch)  # noqa: E731
    return [sorted(group, key=by_batch) for _, groups in sorted(rungs.items()) for group in groups]


def has_several_batches(rung: Sequence[Tuned]) -> bool:
    """Whether an optimizer has several batches at equal size and tokens."""
    return len({(each.opt, each.batch) for each in rung}) > len({each.opt for each in rung})


def at_one_batch(tuned: Sequence[Tuned], baseline: str) -> list[Tuned]:
    """The tuned runs at one batch: of several at equal size and tokens, that of the baseline's least loss."""
    left_out: set[int] = set()
    for rung in filter(has_several_batches, rungs_of(tuned)):
        one = min(rung, key=lambda each: (each.opt != baseline, each.loss))
        left_out |= {id(each) for each in rung if each.batch != one.batch}
    return [each for each in tuned if id(each) not in left_out]


def rate_trials(rows: Sequence[Row], tuned: Tuned) -> list[Row]:
    """The learning-rate trials around a tuned run: its settings apart from the learning rate and the decay that follows
    from it; see `trials_of`."""
    one = tuned.runs[0]
    return trials_of(_at_any_rate([row for row in rows if rung_of(row) == rung_of(one)], one))


def losses_by_rate(rows: Sequence[Row], tuned: Tuned) -> tuple[list[float], list[float]]:
    """(learning rates, final losses) of the trials around a tuned run; infinite where the loss was not finite."""
    trials = rate_trials([row for row in rows if is_usable(row)], tuned)
    lost = diverged_trials(rows, tuned)
    return [row["lr"] for row in (*trials, *lost)], [*(row["final_loss"] for row in trials), *(math.inf for _ in lost)]


def trials_of(rows: Sequence[Row]) -> list[Row]:
    """A row per trial: that of its first seed, with the mean loss over the seeds that all trials have, `trial_seeds` of
    them. All losses must be finite."""
    trials: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        trials[_trial(row)][row["seed"]] = row
    shared = set.intersection(*map(set, trials.values()))
    first = min(shared or [row["seed"] for row in rows])
    seeds = sorted(shared or {first})
    kept = [each for each in trials.values() if first in each]
    return [
        {**each[first], "final_loss": float(np.mean([each[seed]["final_loss"] for seed in seeds])),
         "trial_seeds": len(seeds)}
        for each in kept
    ]  # fmt: skip


def are_same_runs(first: Tuned, second: Tuned) -> bool:
    """Whether two optimizers have equal settings here, to 1% of the rate: their difference says nothing of the two."""
    a, b = first.runs[0], second.runs[0]
    same = a["settings"].get("opt") is not None and _trial(a, _FOLLOW_THE_RATE) == _trial(b, _FOLLOW_THE_RATE)
    return same and abs(math.log(a["lr"] / b["lr"])) < 0.01


def diverged_trials(rows: Sequence[Row], tuned: Tuned) -> list[Row]:
    """As `rate_trials`, for the runs whose loss was not finite."""
    one = tuned.runs[0]
    return _at_any_rate([row for row in rows if has_diverged(row) and is_beside(row, one)], one)


def is_beside(lost: Row, one: Row) -> bool:
    """Whether a run that ended early has the size, horizon and batch of another."""
    same = all(lost.get(key) == one.get(key) for key in ("opt", "params", "batch"))
    return same and lost["settings"].get("iterations") == one["settings"].get("iterations")


def _at_any_rate(rows: Sequence[Row], one: Row) -> list[Row]:
    """The rows with the settings of `one`, apart from seeds, the learning rate and the decay that follows from it."""
    like = _trial(one, _FOLLOW_THE_RATE)
    return [row for row in rows if _trial(row, _FOLLOW_THE_RATE) == like]


def flops_of(row: Row, tokens: float, convention: str) -> float:
    """Compute of a run after `tokens` tokens; the row's own counts for the conventions exact and model."""
    if convention in ("exact", "model"):
        own = (row.get("optimizer_flops") or 0.0) if convention == "exact" else 0.0
        return (row["flops"] + own) * tokens / row["tokens"]
    settings = row["settings"]
    missing = [key for key in _SHAPE if settings.get(key) is None]
    if missing:
        raise UserError(f"run {row['name']} does not say {', '.join(missing)}: --convention exact takes its own FLOPs")
    try:
        shape = shape_of(settings)
    except (TypeError, AttributeError) as error:
        raise UserError(f"run {row['name']}: its settings make no model: {error}") from error
    return training_flops(shape, tokens, settings["seq_len"], convention)


def training_flops(shape: Shape, tokens: float, seq_len: int, convention: str = "exact") -> float:
    """FLOPs of the model to train on `tokens` tokens."""
    if convention in ("exact", "model"):
        return float(flops_per_token(shape, seq_len)) * tokens
    matrices = matrix_params(shape, active=True)
    attends = not shape.architecture.oscillators
    embedding = shape.vocab_size * shape.d_model
    per_token = {
        "6nd": 6 * (matrices + embedding),
        "6nd-total": 6 * (matrices + 2 * embedding),
        "kaplan": 6 * matrices,
        "deepseek": 6 * matrices + 12 * attends * attention_layers(shape) * shape.n_heads * shape.head_dim * seq_len,
    }
    if convention not in per_token:
        known = get_args(Convention)
        raise UserError(f"--convention {convention}{nearest(convention, known)}: known are {', '.join(known)}")
    return float(per_token[convention]) * tokens


def differing_settings(row: Row) -> dict[str, Any]:
    """The settings that make a run another trial than one of the same optimizer, size and horizon: the learning rate
    and what was set beside it, without seeds and the decay that follows from the rate."""
    settings = {"lr": row["lr"], **_settings(row, _FOLLOW_THE_RATE)}
    return settings | (settings.pop("optimizer_settings", None) or {})


def value_of(row: Row, name: str) -> Any:
    """A run's learning rate, or another of its settings; None where it was not given."""
    settings = {**row["settings"], **(row["settings"].get("optimizer_settings") or {})}
    return row["lr"] if name == "lr" else settings.get(name)


def as_text(value: Any) -> str:
    """A setting's value, so that equal ones can be counted."""
    return json.dumps(value, default=str)


def _trial(row: Row, without: Sequence[str] = ()) -> str:
    """The settings of a run without seeds, as text: repeats of a trial have the same."""
    return json.dumps(_settings(row, without), sort_keys=True, default=str)


def _settings(row: Row, without: Sequence[str]) -> dict[str, Any]:
    settings = {"lr": row["lr"], "kappa": row.get("kappa"), **row["settings"]}
    return {
        key: value
        for key, value in settings.items()
        # A row from before a setting existed has its default.
        if key not in _SAME_RUN and key not in without and value is not None and value != _DEFAULTS.get(key)
    }


Resampler = Callable[[np.random.Generator], np.ndarray]
"""Random generator -> final losses of all runs, size by size."""


@dataclass(frozen=True)
class TunedSize:
    """The learning-rate trials of an optimizer at a size, and the seeds at the rate chosen."""

    rates: np.ndarray
    losses: np.ndarray
    """Final loss of each rate's trial [nats/token]."""
    chosen: int
    """Index of the chosen rate."""
    seeds: np.ndarray
    """Final losses at the chosen rate, one per seed; the first `trial_seeds` are its trial."""
    trial_seeds: int = 1
    """Seeds of every trial; `losses` are means over them."""
    length: float = 1.0
    """Steps of each run per parameter, up to a common factor: the noise depends on them."""


class Retuning:
    """How an optimizer's tuned losses would vary if its learning rates were tuned again.

    `noise`: standard deviation of the logarithm of the loss over seeds at each size, with `freedom` degrees of freedom.
    """

    def __init__(self, sizes: Sequence[TunedSize], noise: np.ndarray, freedom: float):
        self._sizes, self._noise, self._freedom = sizes, noise, freedom
        self._excess = _excess_losses(sizes)

    def losses(self, rng: np.random.Generator) -> np.ndarray:
        """Final losses of all runs of a ladder that was tuned again, size by size."""
        drawn = []
        for i, (each, above) in enumerate(zip(self._sizes, self._excess, strict=True)):
            trials = self.trials(i, 1, rng)[0]
            best, own = int(np.argmin(trials)), each.trial_seeds
            logs = above[best] + self._noise[i] * rng.standard_normal(len(each.seeds))
            logs[:own] = trials[best] + (logs[:own] - logs[:own].mean())
            drawn.append(np.exp(np.log(each.seeds).mean() - above[each.chosen] + logs))
        return np.concatenate(drawn)

    def selection(self, size: int, n: int, rng: np.random.Generator) -> SelectionNoise:
        """The size of this index, tuned n times: the variance of its mean beyond that of seeds at one rate.

        Another rate may be chosen, but its first seeds are the best of the trials, which vary less than one trial.
        """
        above, seeds, own = self._excess[size], len(self._sizes[size].seeds), self._sizes[size].trial_seeds
        noise = float(self._noise[size])
        trials = self.trials(size, n, rng)
        others = (seeds - own) * above[trials.argmin(axis=1)]
        others += math.sqrt(seeds - own) * noise * rng.standard_normal(n)
        means = (own * trials.min(axis=1) + others) / seeds
        total = float(np.var(means, ddof=1))
        added = max(total - noise**2 / seeds, 0.0)
        return SelectionNoise((means - means.mean()) * math.sqrt(added / total) if total else means * 0, self._freedom)

    def trials(self, size: int, n: int, rng: np.random.Generator) -> np.ndarray:
        """log(loss / best loss) of each rate's trial at the size of this index [draws, rates]."""
        noise = float(self._noise[size]) / math.sqrt(self._sizes[size].trial_seeds)
        return self._excess[size] + noise * rng.standard_normal((n, len(self._excess[size])))


def retuned(sizes: Sequence[TunedSize]) -> Retuning | None:
    """The tuned sizes of an optimizer, to tune again; None where no size has several rates, or none several seeds."""
    if all(len(each.seeds) < 2 for each in sizes) or all(len(each.rates) < 2 for each in sizes):
        return None
    return Retuning(sizes, *_noise(sizes))


def _noise(sizes: Sequence[TunedSize]) -> tuple[np.ndarray, float]:
    """Standard deviation of log losses over seeds at each size, and its degrees of freedom."""
    variances = [float(np.log(each.seeds).var(ddof=1)) if len(each.seeds) > 1 else 0.0 for each in sizes]
    law, freedom = noise_law([each.length for each in sizes], variances, [len(each.seeds) - 1 for each in sizes])
    return np.sqrt(law), freedom


def resampler(sizes: Sequence[TunedSize]) -> Resampler:
    """How the losses of an optimizer would be drawn again, its rates tuned again where several were tried."""
    again = retuned(sizes)
    if again is not None:
        return again.losses
    logs = [np.log(each.seeds) for each in sizes]
    noise = _noise(sizes)[0] if any(len(each) > 1 for each in logs) else np.zeros(len(logs))

    def draw(rng: np.random.Generator) -> np.ndarray:
        drawn = (each.mean() + sd * rng.standard_normal(len(each)) for each, sd in zip(logs, noise, strict=True))
        return np.exp(np.concatenate(list(drawn)))

    return draw


def _excess_losses(sizes: Sequence[TunedSize]) -> list[np.ndarray]:
    """log(loss / best loss) of each rate, by parabolas of one curvature; as measured where there is no curvature."""
    trials = []
    for each in sizes:
        logs = np.log(each.losses)
        logs[each.chosen] = np.log(each.seeds).mean()
        trials.append((np.log(each.rates), logs))
    try:
        curvature = fit_shared_curvature([(np.exp(x), y) for x, y in trials]).curvature
    except UserError:
        return [y - y.min() for _, y in trials]
    excess = []
    for x, y in trials:
        # y = L* + k (x - x*)^2, so y - k x^2 is a line of slope -2 k x*
        slope = float(np.polyfit(x, y - curvature * x**2, 1)[0]) if len(x) > 1 else -2 * curvature * x[0]
        parabola = curvature * (x - np.clip(-slope / (2 * curvature), x.min(), x.max())) ** 2
        excess.append(parabola - parabola.min())
    return excess

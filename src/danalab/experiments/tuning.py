"""From rows to tuned runs: the settings of least mean loss for each optimizer, size and horizon.

A ladder tries several learning rates with one seed, takes the best, and repeats it with other seeds. The chosen run is
the luckiest of its trials, and not always the best rate; intervals that keep the choice are too narrow. So a ladder is
drawn again (`Redraw`) with new noise for every trial, the choice made again, and seeds at the rate chosen:

    loss of a trial = L* + k log(lr / lr*)^2 + noise     k shared by all sizes, noise c steps^b by the seeds
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from danalab.errors import UserError, import_extra
from danalab.experiments.rate_laws import shared_curvature
from danalab.experiments.rows import Row, has_diverged, is_usable
from danalab.scaling.learning_rate import CHINCHILLA

LEAST_VALUES = 3
"""Values of a dial from which one can be inside."""
_FOLLOW_THE_RATE = ("lr", "weight_decay", "wd_ts")
"""Settings that differ between the trials of a learning rate; decay is given as a share of it."""
_HOW = {
    "acc_steps",
    "activation_checkpointing",
    "async_checkpoint",
    "auto_resume",
    "average",
    "batch_size",
    "ckpt_interval",
    "collect_tau_stats",
    "collective_timeout",
    "compile",
    "deterministic",
    "device",
    "distributed_backend",
    "ema",
    "epochs",
    "eval_batches",
    "eval_interval",
    "expert_parallel",
    "extend_to",
    "final_eval_batches",
    "heads",
    "horizon_basis",
    "horizon_law",
    "iterations_to_run",
    "json",
    "keep_every",
    "keep_last",
    "local_ckpt_dir",
    "log_interval",
    "lr_multiplier",
    "name",
    "nproc",
    "on_nonfinite",
    "onednn",
    "peak_tflops",
    "profile",
    "replicas",
    "resume_from",
    "rules",
    "run_dir",
    "size",
    "tensorboard",
    "tokens_per_param",
    "tp_size",
    "trackio",
    "tune_malloc",
    "wandb",
    "wandb_entity",
    "wandb_group",
    "wandb_mode",
    "wandb_project",
    "seed",
    "data_seed",
}
"""Settings of seeds, of how and where a run is made, and those that others follow from, also of earlier rows."""


@dataclass(frozen=True)
class Tuned:
    """An optimizer at a size and horizon, at its best settings."""

    opt: str
    params: int
    non_emb_params: int
    lr: float
    lr_multiplier: float | None
    """Factor on the fitted law's learning rate; None where the law is not known."""
    runs: tuple[Row, ...]
    """One per seed, in their order."""
    trials: tuple[Row, ...]
    """Every setting tried here, as `trials_of`, also those whose loss was not finite."""
    rate_trials: tuple[Row, ...]
    """Those that differ from the best settings in the learning rate alone, of finite loss, by rate."""
    flops: float

    @property
    def tokens(self) -> int:
        """Tokens that each run saw."""
        return self.runs[0]["tokens"]

    @property
    def steps_per_param(self) -> float:
        """Steps of each run per parameter, up to a factor that all runs of a ladder share."""
        return self.tokens / self.params / (self.runs[0].get("batch") or 1)

    @property
    def horizon(self) -> float:
        """f = tokens / (20 parameters), by the count of --horizon-basis; rounded steps are ignored."""
        row = self.runs[0]
        computed = row["tokens"] / (CHINCHILLA * (row.get("total_params") or row["params"]))
        asked = (row["settings"].get("tokens_per_param") or 0) / CHINCHILLA
        return asked if abs(computed - asked) <= 0.05 * asked else computed

    @cached_property
    def dials(self) -> dict[str, tuple[list[Any], Any]]:
        """Setting -> (values that were tried with all else equal, the best of them); the learning rate first.

        Of several such groups of trials it is the one with most values.
        """
        varied = set().union(*map(settings_of, self.trials)) - set(_FOLLOW_THE_RATE)
        found = {}
        for name in ("lr", *sorted(varied)):
            groups: dict[str, list[Row]] = defaultdict(list)
            for row in self.trials:
                groups[_without(row, _FOLLOW_THE_RATE if name == "lr" else (name,))].append(row)

            def rank(rows: list[Row], name: str = name) -> tuple[int, float]:
                losses = [row["final_loss"] for row in rows if is_usable(row)]
                return len({as_text(value_of(row, name)) for row in rows}), -min(losses, default=math.inf)

            rows = max(groups.values(), key=rank)
            values = {as_text(value_of(row, name)): value_of(row, name) for row in rows}
            usable = [row for row in rows if is_usable(row)]
            if len(values) > 1 and usable:
                best = value_of(min(usable, key=lambda row: row["final_loss"]), name)
                numbers = all(isinstance(value, (int, float)) for value in values.values())
                found[name] = (sorted(values.values()) if numbers else [*values.values()], best)
        return found

    @property
    def edges(self) -> list[str]:
        """Dials whose best value is an outermost one of several numbers: a better one may lie beyond."""
        return [
            name
            for name, (values, best) in self.dials.items()
            if all(isinstance(value, (int, float)) for value in values)
            and len(values) >= (2 if name == "lr" else LEAST_VALUES)
            and best in (values[0], values[-1])
        ]

    @property
    def rates(self) -> list[float]:
        """Learning rates tried with these runs' other settings, ascending."""
        return sorted({row["lr"] for row in self.trials if _without(row) == _without(self.runs[0])})

    @property
    def at_edge(self) -> bool:
        """Whether the best learning rate is an outermost one of several: a better one may lie beyond."""
        return len(self.rates) > 1 and self.lr in (self.rates[0], self.rates[-1])

    @property
    def bracket(self) -> str:
        """edge, one rate, or nothing: whether the best learning rate lacks a neighbour that was tried on some side."""
        every = sorted({row["lr"] for row in self.trials})
        if len(every) < 2:
            return "one rate"
        return "edge" if self.at_edge or self.lr in (every[0], every[-1]) else ""

    @property
    def losses(self) -> np.ndarray:
        """Final losses, one per seed [nats/token]."""
        return np.array([row["final_loss"] for row in self.runs])

    @property
    def loss(self) -> float:
        """Mean final loss over seeds [nats/token]."""
        return float(self.losses.mean())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        return float(self.losses.std(ddof=1)) if len(self.runs) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Its numbers and the names of its runs, for JSON."""
        return {
            "opt": self.opt,
            "params": self.params,
            "batch": self.runs[0].get("batch"),
            "lr": self.lr,
            "lr_multiplier": self.lr_multiplier,
            "loss": self.loss,
            "spread": self.spread,
            "seeds": len(self.runs),
            "trials": len(self.trials),
            "flops": self.flops,
            "tokens": self.tokens,
            "runs": [row["name"] for row in self.runs],
        }


def rung_of(row: Row) -> tuple[str, int, int, int]:
    """Optimizer, size, tokens and batch: runs of one rung are tuned together."""
    return row["opt"], row["params"], row["tokens"], row.get("batch") or 0


def tune(rows: Sequence[Row], convention: str = "exact") -> list[Tuned]:
    """The tuned runs, in the order of optimizer, size, horizon and batch.

    Runs that differ only in seeds are repeats of one trial. The trial of least mean loss is taken among those with the
    most seeds: one lucky seed does not beat the mean of three. Runs that diverged count as trials and bound the best
    rate. `convention`: of compute, see `flops_of`.
    """
    rungs: dict[tuple[str, int, int, int], list[Row]] = defaultdict(list)
    for row in filter(is_usable, rows):
        rungs[rung_of(row)].append(row)
    tuned = []
    for (opt, params, tokens, _), here in sorted(rungs.items(), key=lambda item: item[0]):
        lost = [row for row in rows if has_diverged(row) and _is_beside(row, here[0])]
        trials: dict[str, list[Row]] = defaultdict(list)
        for row in here:
            trials[as_text(settings_of(row))].append(row)
        most = max(map(len, trials.values()))
        repeated = [runs for runs in trials.values() if len(runs) == most]
        runs = min(repeated, key=lambda runs: float(np.mean([row["final_loss"] for row in runs])))
        runs = sorted(runs, key=lambda row: row["seed"])
        one, tried = runs[0], trials_of(here)
        alike = sorted((row for row in tried if _without(row) == _without(one)), key=lambda row: row["lr"])
        known = {as_text(settings_of(row)) for row in tried}
        failed = {as_text(settings_of(row)): row for row in lost if as_text(settings_of(row)) not in known}
        own = (opt, params, one["non_emb_params"], one["lr"], one["lr_multiplier"], tuple(runs))
        tuned.append(Tuned(*own, (*tried, *failed.values()), tuple(alike), flops_of(one, tokens, convention)))
    return tuned


def trials_of(rows: Sequence[Row]) -> list[Row]:
    """A row per trial: that of its first seed, with the mean loss over the seeds that all trials have, `trial_seeds` of
    them. All losses must be finite."""
    trials: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        trials[as_text(settings_of(row))][row["seed"]] = row
    shared = set.intersection(*map(set, trials.values()))
    first = min(shared or [row["seed"] for row in rows])
    seeds = sorted(shared or {first})
    return [
        {
            **each[first],
            "final_loss": float(np.mean([each[seed]["final_loss"] for seed in seeds])),
            "trial_seeds": len(seeds),
        }
        for each in trials.values()
        if first in each
    ]


def are_same_runs(first: Tuned, second: Tuned) -> bool:
    """Whether two optimizers have equal settings here, to 1% of the rate: their difference says nothing of the two."""
    a, b = first.runs[0], second.runs[0]
    same = a["settings"].get("opt") is not None and _without(a) == _without(b)
    return same and abs(math.log(a["lr"] / b["lr"])) < 0.01


def settings_of(row: Row) -> dict[str, Any]:
    """The settings that make a run another trial than one of the same optimizer, size and horizon."""
    settings = {"lr": row["lr"], "kappa": row.get("kappa"), **row["settings"]}
    settings |= settings.pop("optimizer_settings", None) or {}
    return {key: value for key, value in settings.items() if key not in _HOW and value not in (None, False)}


def value_of(row: Row, name: str) -> Any:
    """A run's learning rate, or another of its settings; None where it was not given."""
    settings = {**row["settings"], **(row["settings"].get("optimizer_settings") or {})}
    return row["lr"] if name == "lr" else settings.get(name)


def as_text(value: Any) -> str:
    """A setting's value, or settings, so that equal ones can be counted."""
    return json.dumps(value, sort_keys=True, default=str)


def _without(row: Row, names: Collection[str] = _FOLLOW_THE_RATE) -> str:
    return as_text({key: value for key, value in settings_of(row).items() if key not in names})


def _is_beside(lost: Row, one: Row) -> bool:
    """Whether a run that ended early has the size, horizon and batch of another."""
    same = all(lost.get(key) == one.get(key) for key in ("opt", "params", "batch"))
    return same and lost["settings"].get("iterations") == one["settings"].get("iterations")


def flops_of(row: Row, tokens: float, convention: str) -> float:
    """Compute of a run after `tokens` tokens: model, or exact, with the optimizer's own matrix products."""
    own = (row.get("optimizer_flops") or 0.0) if convention == "exact" else 0.0
    return (row["flops"] + own) * tokens / row["tokens"]


# ---- ladders drawn again ----
@dataclass(frozen=True)
class Trials:
    """The learning-rate trials of an optimizer on a rung, and the seeds at the rate chosen."""

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

    @classmethod
    def of(cls, tuned: Tuned) -> "Trials":
        """Where other dials were moved after the rate, its trials are moved by what these lowered the loss."""
        known = {row["lr"]: row["final_loss"] for row in tuned.rate_trials} or {tuned.lr: tuned.losses[0]}
        repeats = tuned.rate_trials[0]["trial_seeds"] if tuned.rate_trials else 1
        rates = sorted(known)
        known[tuned.lr] = float(tuned.losses[:repeats].mean())
        losses = np.array([known[rate] for rate in rates])
        return cls(
            np.array(rates), losses, rates.index(tuned.lr), tuned.losses, repeats, tuned.steps_per_param
        )


class Redraw:
    """Losses of an optimizer's rungs as they would be if the ladder were run again, its rates tuned again.

    `freedom`: degrees of freedom of the noise; 0: no rung has several seeds, and nothing is known.
    """

    def __init__(self, rungs: Sequence[Trials]):
        self._rungs = rungs
        self._noise, self.freedom = _noise(rungs)
        self._excess = _excess_losses(rungs)

    def shifts(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """`shift` of every rung, one after another: [draws, seeds of all rungs]."""
        return np.concatenate([self.shift(i, rng, n) for i in range(len(self._rungs))], axis=1)

    def shift(self, i: int, rng: np.random.Generator, n: int) -> np.ndarray:
        """Of n draws of the i-th rung, log(new loss / measured loss) of each seed."""
        rung, above, noise = self._rungs[i], self._excess[i], self._noise[i]
        own = rung.trial_seeds
        trials = above + noise / math.sqrt(own) * rng.standard_normal((n, len(above)))
        best = trials.argmin(axis=1)
        logs = (above[best] - above[rung.chosen])[:, None] + noise * rng.standard_normal((n, len(rung.seeds)))
        # These seeds are the trial that was chosen.
        logs[:, :own] += (trials.min(axis=1) - above[rung.chosen] - logs[:, :own].mean(axis=1))[:, None]
        measured = np.log(rung.seeds)
        return measured.mean() + logs - measured


def _noise(rungs: Sequence[Trials]) -> tuple[np.ndarray, float]:
    """Standard deviation of log losses over seeds on each rung, and its degrees of freedom.

    Variance c steps^b by the likelihood of normal samples: long runs vary less than short ones. Pooled where repeated
    runs span less than a factor of 4 in steps, or are of fewer than three lengths.
    """
    t = np.log([rung.length for rung in rungs])
    freedom = np.array([len(rung.seeds) - 1 for rung in rungs])
    variances = np.array([np.log(rung.seeds).var(ddof=1) if len(rung.seeds) > 1 else 0.0 for rung in rungs])
    total = float(freedom.sum())
    if not total:
        return np.zeros(len(rungs)), 0.0
    pooled = float(freedom @ variances) / total
    known = t[freedom > 0]
    if not pooled or len(set(known)) < 3 or np.ptp(known) < math.log(4):
        return np.full(len(rungs), math.sqrt(pooled)), total

    def cost(law: np.ndarray) -> float:
        log_variance = law[0] + law[1] * (t - t.mean())
        return float(freedom @ (log_variance + variances * np.exp(-log_variance)))

    optimize = import_extra("scipy.optimize", "intervals")
    found = optimize.minimize(cost, [math.log(pooled), 0.0], method="Nelder-Mead").x
    return np.exp((found[0] + found[1] * (t - t.mean())) / 2), total - 1


def _excess_losses(rungs: Sequence[Trials]) -> list[np.ndarray]:
    """log(loss / best loss) of each rate, by parabolas of one curvature; as measured where there is no curvature."""
    trials = []
    for rung in rungs:
        logs = np.log(rung.losses)
        logs[rung.chosen] = np.log(rung.seeds).mean()
        trials.append((np.log(rung.rates), logs))
    try:
        curvature = shared_curvature(trials)
    except UserError:
        return [y - y.min() for _, y in trials]
    excess = []
    for x, y in trials:
        # y = L* + k (x - x*)^2, so y - k x^2 is a line of slope -2 k x*
        slope = float(np.polyfit(x, y - curvature * x**2, 1)[0]) if len(x) > 1 else -2 * curvature * x[0]
        parabola = curvature * (x - np.clip(-slope / (2 * curvature), x.min(), x.max())) ** 2
        excess.append(parabola - parabola.min())
    return excess

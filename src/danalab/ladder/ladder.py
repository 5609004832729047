"""A ladder: optimizers x sizes at one horizon, learning rates tuned alike, then more seeds at the chosen rates.

    trials   every optimizer at every size with every LR multiplier, first seed
    edges    where the best multiplier is the outermost one, one beyond it, for at most `extensions` times
    seeds    the best multiplier again with the other seeds

The number of trials is part of the result: the baseline must be tuned as much as the contender.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from danalab.errors import UserError, nearest
from danalab.files import write_json
from danalab.ladder.runs.grid import Cell, expand, name_of, parse_plan
from danalab.ladder.runs.jobs import Failure
from danalab.ladder.runs.slurm_arrays import Cluster
from danalab.ladder.runs.sweep import run_sweep
from danalab.scaling.learning_rate import OPTIMIZERS
from danalab.train.config.fields import flag

_FORMS = {
    "opts": "opts: [adamw, adana]",
    "heads": "heads: [2, 3]",
    "sizes": "sizes: [{d_model: 64, n_layers: 2, n_heads: 2}], or heads: [2, 3]",
    "multipliers": "multipliers: [0.5, 1, 2]",
    "extensions": "extensions: 2",
    "seeds": "seeds: [0, 1, 2]",
    "fixed": "fixed: {data: stdlib, seq_len: 256}",
}
"""Keys of a file and their forms."""
_ITS_OWN = {
    "opt": "opts",
    "seed": "seeds",
    "data_seed": "seeds",
    "lr": "multipliers, which are factors on the law's rate",
    "lr_multiplier": "multipliers",
}
"""Settings that a ladder varies -> keys that give them."""


def _has_form(key: str, value: Any) -> bool:
    """Whether the value of a file's key has the right type."""
    if key == "extensions":
        return isinstance(value, int)
    if key == "fixed":
        return isinstance(value, dict)
    one = {"opts": str, "sizes": dict, "multipliers": (int, float)}.get(key, int)
    return isinstance(value, list) and all(isinstance(each, one) for each in value)


@dataclass(frozen=True, kw_only=True)
class LadderPlan:
    """The definition of a ladder."""

    opts: tuple[str, ...]
    """Optimizers; adamw is the baseline, or without it the first one."""
    sizes: tuple[dict[str, Any], ...]
    """Settings that make a size: {"heads": 3}, or d_model, n_layers and n_heads."""
    multipliers: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Factors on the learning-rate law that are tried at every size; one: nothing is tuned."""
    extensions: int = 2
    """Maximum number of multipliers tried beyond the outermost one, where that one is best."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The first one is for the trials."""
    fixed: dict[str, Any]
    """Settings that all runs have in common."""

    def __post_init__(self) -> None:
        for name in ("opts", "sizes", "multipliers", "seeds"):
            values = getattr(self, name)
            if not values:
                raise UserError(f"the ladder has no {name}: no run is left")
            if any(value in values[:i] for i, value in enumerate(values)):
                raise UserError(f"the ladder has one of its {name} twice: {values}")
        names = [OPTIMIZERS.canonical(opt) for opt in self.opts]
        for i, opt in enumerate(self.opts):
            if names[i] in names[:i]:
                raise UserError(f"the ladder has one of its opts twice: {opt} is {names[i]}")
        for key in _ITS_OWN:
            if key in self.fixed:
                raise UserError(f"fixed has {flag(key)}, which the ladder sets; leave it out ({_ITS_OWN[key]})")
        if any(not 0 < float(m) < math.inf for m in self.multipliers):
            raise UserError(f"multipliers {self.multipliers}: must be finite and positive")
        if self.extensions < 0:
            raise UserError(f"extensions {self.extensions}: must be 0 or more")

    @classmethod
    def read(cls, path: Path) -> "LadderPlan":
        """From a YAML file with these fields (`heads: [2, 3]` is short for sizes)."""
        loaded = {key: value for key, value in parse_plan(path).items() if value is not None}
        for key, value in loaded.items():
            if key not in _FORMS:
                raise UserError(f"{path}: unknown key '{key}'{nearest(key, _FORMS)}")
            if not _has_form(key, value):
                raise UserError(f"{path}: {key} is {value!r}; expected is something like {_FORMS[key]}")
        if "heads" in loaded:
            loaded["sizes"] = [*loaded.get("sizes", []), *({"heads": heads} for heads in loaded.pop("heads"))]
        for key in ("opts", "sizes"):
            if key not in loaded:
                raise UserError(f"{path}: no {key}, such as {_FORMS[key]}")
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in loaded.items()}
        return cls(**{"fixed": {}, **given})

    def trials(self) -> list[Cell]:
        """The learning-rate trials, the smallest sizes first, so that mistakes show early."""
        return [self.cell(opt, size, m, self.seeds[0]) for size in self.sizes for opt in self.opts
                for m in sorted(map(float, self.multipliers))]  # fmt: skip

    def repeats(self) -> list[Cell]:
        """The other seeds, at the middle multiplier in place of the best one, which is not known yet."""
        middle = sorted(map(float, self.multipliers))[len(self.multipliers) // 2]
        return [self.cell(opt, size, middle, seed) for size in self.sizes for opt in self.opts
                for seed in self.seeds[1:]]  # fmt: skip

    def cell(self, opt: str, size: Mapping[str, Any], multiplier: float, seed: int) -> Cell:
        """One run of the ladder; its data order goes with its seed."""
        varied = {"opt": opt, **size, "lr_multiplier": multiplier, "seed": seed}
        settings = {**varied, "data_seed": 1337 + seed}
        (checked,) = expand({}, self.fixed, [settings])
        return Cell(name_of(varied), checked.settings)


@dataclass(frozen=True)
class Choice:
    """The result of tuning an optimizer at a size."""

    opt: str
    size: dict[str, Any]
    multiplier: float
    trials: int
    at_edge: bool
    """The best multiplier is the outermost one tried: a better one may lie beyond."""
    losses: dict[str, float | None]
    """Multiplier -> final loss of its trial; None: the run failed."""


@dataclass(frozen=True)
class LadderResult:
    """The result of a ladder."""

    folder: Path
    rows: list[dict[str, Any]]
    tuned: list[Choice]
    """Empty while runs are queued."""
    failures: list[Failure]
    queued: list[str] = field(default_factory=list)
    """Runs still at SLURM; call again for those that depend on them."""
    untuned: list[str] = field(default_factory=list)
    """Optimizers and sizes where every trial failed, so that there are no further seeds."""


def run_ladder(
    folder: Path,
    plan: LadderPlan,
    *,
    executor: str = "pool",
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> LadderResult:
    """Run everything that is not finished; see the module's docstring."""
    tried = {(opt, i): sorted(map(float, plan.multipliers)) for opt in plan.opts for i in range(len(plan.sizes))}
    cells: list[Cell] = []

    def make(title: str) -> Any:
        return run_sweep(folder, cells, executor=executor, jobs=jobs, cluster=cluster, title=title)

    order = sorted(tried, key=lambda key: key[1])
    cells += plan.trials()
    result = make("learning-rate trials")
    if result.queued:
        return LadderResult(folder, result.rows, [], result.failures, result.queued)
    for _ in range(plan.extensions if len(plan.multipliers) > 1 else 0):
        beyond = []
        for opt, i in order:
            extra = _beyond_the_edge(tried[opt, i], _losses(result.rows, plan, opt, i, tried[opt, i]))
            if extra is not None:
                tried[opt, i] = sorted([*tried[opt, i], extra])
                beyond.append(plan.cell(opt, plan.sizes[i], extra, plan.seeds[0]))
        if not beyond:
            break
        cells += beyond
        result = make("trials beyond the edge")
        if result.queued:
            return LadderResult(folder, result.rows, [], result.failures, result.queued)
    choices = {key: _tuned(result.rows, plan, *key, tried[key]) for key in order}
    tuned = [choice for choice in choices.values() if choice is not None]
    untuned = [f"{opt} at {_words(plan.sizes[i])}" for (opt, i), choice in choices.items() if choice is None]
    cells += [plan.cell(each.opt, each.size, each.multiplier, seed) for each in tuned for seed in plan.seeds[1:]]
    result = make("more seeds")
    write_json(folder / "tuning.json", [each.__dict__ for each in tuned])
    return LadderResult(folder, result.rows, tuned, result.failures, result.queued, untuned)


def _words(size: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in size.items())


def _losses(
    rows: Sequence[Mapping[str, Any]], plan: LadderPlan, opt: str, i: int, multipliers: Sequence[float]
) -> list[float]:
    """Final loss of each multiplier's trial; infinite where it failed."""
    by_name = {row["name"]: row["final_loss"] for row in rows}
    found = [by_name.get(plan.cell(opt, plan.sizes[i], m, plan.seeds[0]).name) for m in multipliers]
    return [math.inf if loss is None or not math.isfinite(loss) else loss for loss in found]


def _beyond_the_edge(multipliers: Sequence[float], losses: Sequence[float]) -> float | None:
    """The next multiplier where the best is an outermost one, at the distance of its neighbour."""
    best = min(range(len(losses)), key=losses.__getitem__)
    if math.isinf(losses[best]):
        return None
    if best == 0:
        return multipliers[0] ** 2 / multipliers[1]
    if best == len(losses) - 1:
        return multipliers[-1] ** 2 / multipliers[-2]
    return None


def _tuned(
    rows: Sequence[Mapping[str, Any]], plan: LadderPlan, opt: str, i: int, multipliers: Sequence[float]
) -> Choice | None:
    """The best trial; None where all failed."""
    losses = _losses(rows, plan, opt, i, multipliers)
    best = min(range(len(losses)), key=losses.__getitem__)
    if math.isinf(losses[best]):
        return None
    shown = {f"{m:g}": None if math.isinf(loss) else loss for m, loss in zip(multipliers, losses, strict=True)}
    at_edge = len(losses) > 1 and best in (0, len(losses) - 1)
    return Choice(opt, dict(plan.sizes[i]), multipliers[best], len(losses), at_edge, shown)

"""A ladder: optimizers x sizes x horizons x batches, tuned alike, then more seeds at the best settings.

    f       = tokens / (20 parameters)                 horizon; parameters as --tokens-per-param counts them
    omega   = factor x c sqrt(f)                       decay_law sqrt; c = 8 (coupled decay), 2 (log-time decay)
    omega   = factor x 4                               decay_law rules

Every optimizer has as many trials as every other: a plan whose dials differ in number is refused.

    rates    every multiplier of the learning rate; further ones while the best is the outermost
    dials    the other values of each dial at the best rate; a number at an edge is followed like the rate
    again    after a dial has moved, rate and dials are searched around the new best, until nothing moves
    refine   trials that are left go between the best rate and its better neighbour
    seeds    the best settings with the other seeds

A trial is a run with the first seed, or with each of the first `trial_seeds`: then its loss is their mean. With
horizons or batches, trials on a rung (a size at both) are centred on the best rate of the rung before.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from danalab.errors import UserError, nearest
from danalab.experiments.cells import Cell, check_optimizers, comparable, expand, name_of, parse_plan
from danalab.experiments.runs import MORE_SEEDS, Queued, Runner
from danalab.files import validated, write_json
from danalab.optimizer_facts import OMEGA, facts_of
from danalab.scaling.learning_rate import CHINCHILLA
from danalab.scaling.rate_search import rounded
from danalab.train.config.flags import flag

# ---- the definition ----
_SQRT_DECAY = {"coupled": 8.0, "independent": 2.0}
"""Kind of decay -> c of omega = c sqrt(f). Source: arXiv 2609.04577, from notes on it."""
DECAY = "decay"
"""The dial that is a factor on the weight decay of the law; all other dials are settings of a run."""
ALL = "all"
"""Key of the dials of optimizers without an entry of their own."""
SET_BY_THE_LADDER = {
    "opt": "opts",
    "seed": "seeds",
    "data_seed": "seeds",
    "lr": "multipliers, which are factors on the default rate",
    "lr_multiplier": "multipliers",
}
"""Settings that a ladder varies -> keys that give them."""
FREE_TRIALS = 2  # trials for what lies beyond edges and between rates, where the file does not say `trials`

Positive = Annotated[float, Gt(0), Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Rung:
    """A size at a horizon, where optimizers are tuned and compared."""

    size: tuple[tuple[str, Any], ...]
    """Its settings."""
    horizon: float | None
    """f; None: the plan has no horizons."""

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.size]
        return " ".join(words if self.horizon is None else [*words, f"f={self.horizon:g}"])


class LadderPlan(BaseModel):
    """The definition of a ladder, as the YAML file has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opts: tuple[str, ...] = Field(min_length=1)
    """Optimizers or `variants`; adamw is the baseline, or without it the first one."""
    heads: tuple[int, ...] = ()
    """Sizes by their heads; short for entries of `sizes`."""
    sizes: tuple[dict[str, Any], ...] = ()
    """Settings that make a size: {"heads": 3}, or d_model, n_layers and n_heads; `horizons` of its own, if any."""
    horizons: tuple[Positive, ...] = ()
    """f = tokens / (20 parameters) of every size; none: one horizon, that of `fixed`."""
    multipliers: tuple[Positive, ...] = Field((0.5, 1.0, 2.0), min_length=1)
    """Factors on the learning rate that are tried first; one: the rate is not tuned. They multiply the default rate;
    with horizons, the best rate at the rung before."""
    trials: int | None = None
    """Number of settings that every optimizer tries on a rung; default its multipliers and dials and two more."""
    start: dict[str, Positive] = {}
    """Optimizer -> factor on the default rate, from which its multipliers start."""
    decay_law: Literal["rules", "sqrt"] = "rules"
    """Strength of weight decay: rules (omega 4, or that of `fixed`) or sqrt."""
    dials: dict[str, dict[str, tuple[Any, ...]]] = {}
    """Optimizer, or `all` -> setting -> values. The first value is used while learning rates are tried; the others are
    tried at the best rate, one dial after another."""
    variants: dict[str, dict[str, Any]] = {}
    """Name -> `opt` and settings of it."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """The first one is for the trials."""
    trial_seeds: int = 1
    """Number of these seeds that every trial is run with; its loss is their mean."""
    fixed: dict[str, Any] = {}
    """Settings that all runs have in common."""

    @model_validator(mode="after")
    def _check(self) -> "LadderPlan":
        if not self.sizes and not self.heads:
            raise ValueError(
                "no sizes, such as heads: [2, 3] or sizes: [{d_model: 64, n_layers: 2, n_heads: 2}]"
            )
        for name in ("opts", "sizes", "heads", "multipliers", "seeds", "horizons"):
            values = [comparable("opt", value) if name == "opts" else value for value in getattr(self, name)]
            if any(value in values[:i] for i, value in enumerate(values)):
                raise ValueError(f"one of {name} is there twice: {values}")
        names = {"start": self.opts, "dials": (*self.opts, ALL), "variants": self.opts}
        for key, known in names.items():
            for name in getattr(self, key):
                if name not in known:
                    raise ValueError(f"{key} has '{name}'{nearest(name, known)}, which is not in opts")
        for name, variant in self.variants.items():
            if "opt" not in variant:
                raise ValueError(
                    f"variants: {name} has no opt, such as {{{name}: {{opt: adana, kappa: 0.75}}}}"
                )
        for key, by in SET_BY_THE_LADDER.items():
            if key in self.fixed:
                raise ValueError(f"fixed has {flag(key)}, which the ladder sets; leave it out: {by}")
        if not 1 <= self.trial_seeds <= len(self.seeds):
            raise ValueError(
                f"trial_seeds is {self.trial_seeds}; it must be 1 to {len(self.seeds)}, as many as seeds"
            )
        self._check_horizons()
        self._check_dials()
        return self

    def rungs(self) -> list[Rung]:
        """All sizes at all their horizons: short horizons first, of one horizon small sizes first."""
        sizes = [*({"heads": heads} for heads in self.heads), *self.sizes]
        ordered = []
        for place, size in enumerate(sizes):
            own = tuple((key, value) for key, value in size.items() if key != "horizons")
            horizons = sorted(map(float, size.get("horizons", self.horizons))) or [None]
            ordered += [(f or 0.0, place, Rung(own, f)) for f in horizons]
        return [rung for _, _, rung in sorted(ordered, key=lambda each: each[:2])]

    def rung_before(self, rung: Rung) -> Rung | None:
        """The rung from whose best learning rate the trials of `rung` start: the next shorter horizon of the size, else
        the next smaller size at the horizon."""
        if rung.horizon is None:
            return None
        every = self.rungs()
        same = [each for each in every if each.size == rung.size and (each.horizon or 0) < rung.horizon]
        earlier = [each for each in every[: every.index(rung)] if each.horizon == rung.horizon]
        return (same or earlier or [None])[-1]

    def dials_of(self, opt: str) -> dict[str, tuple[Any, ...]]:
        """The optimizer's dials besides the learning rate."""
        return self.dials.get(opt, self.dials.get(ALL, {}))

    def trials_of(self, opt: str) -> int:
        """Number of settings that an optimizer tries on a rung."""
        least = self._least_trials(opt)
        return self.trials or (least + FREE_TRIALS if len(self.multipliers) > 1 else least)

    def _least_trials(self, opt: str) -> int:
        return len(self.multipliers) + sum(len(values) - 1 for values in self.dials_of(opt).values())

    def planned(self, rung: Rung) -> dict[str, list[Cell]]:
        """Optimizer -> the runs of a rung, with the middle multiplier in place of those that are not known yet."""
        multipliers = sorted(self.multipliers)
        middle = multipliers[len(multipliers) // 2]
        runs: dict[str, list[Cell]] = {}
        for opt in self.opts:
            tried = [*multipliers, *[middle] * (self.trials_of(opt) - len(multipliers))]
            pairs = [(m, seed) for m in tried for seed in self.seeds[: self.trial_seeds]]
            pairs += [(middle, seed) for seed in self.seeds[self.trial_seeds :]]
            runs[opt] = [self.cell(opt, rung, self.start.get(opt, 1.0) * m, seed) for m, seed in pairs]
        return runs

    def cell(
        self,
        opt: str,
        rung: Rung,
        multiplier: float,
        seed: int,
        dials: Mapping[str, Any] | None = None,
        place: tuple[int, ...] = (),
    ) -> Cell:
        """One run of the ladder; its data order goes with its seed; `dials` defaults to the first values."""
        defaults = {name: values[0] for name, values in self.dials_of(opt).items()}
        chosen = {**defaults, **(dials or {})}
        moved = {name: value for name, value in chosen.items() if value != defaults[name]}
        # Trials start from the best rate at the rung before: a ladder measures the law of the horizon.
        settings: dict[str, Any] = {}
        settings |= {"opt": opt, **self.variants.get(opt, {}), **dict(rung.size)}
        name: dict[str, Any] = {"opt": opt, **dict(rung.size)}
        if rung.horizon is not None:
            settings["tokens_per_param"] = CHINCHILLA * rung.horizon
            name["f"] = rung.horizon
        name |= {"lr_multiplier": multiplier, **moved, "seed": seed}
        factor = chosen.pop(DECAY, 1.0)
        if self.decay_law == "sqrt" and rung.horizon is not None:
            strength = _SQRT_DECAY[facts_of(settings["opt"]).decay] * math.sqrt(rung.horizon)
            settings["omega"] = float(f"{factor * strength:.6g}")
        elif factor != 1:
            settings["omega"] = factor * OMEGA
        settings |= {**chosen, "lr_multiplier": multiplier, "seed": seed, "data_seed": 1337 + seed}
        (checked,) = expand({}, self.fixed, [settings])
        return Cell(name_of(name), checked.settings, opt if opt in self.variants else None, (*place, seed))

    def _check_horizons(self) -> None:
        horizons = [f for rung in self.rungs() for f in [rung.horizon]]
        if None in horizons and any(horizons):
            raise ValueError("some sizes have horizons and some have none; give `horizons` for all")
        if any(horizons):
            for key in ("tokens_per_param", "iterations", "epochs"):
                if key in self.fixed:
                    raise ValueError(
                        f"fixed has {flag(key)} beside horizons, which set the length; leave one out"
                    )
        elif self.decay_law == "sqrt":
            raise ValueError("decay_law sqrt: is c sqrt(f) of horizons f; give horizons")

    def _check_dials(self) -> None:
        moved = self.decay_law == "sqrt" or any(DECAY in dials for dials in self.dials.values())
        for key in ("omega", "weight_decay"):
            if moved and key in self.fixed:
                raise ValueError(
                    f"fixed has {flag(key)} beside a decay law or dial, which sets it; leave one out"
                )
        counts = {opt: sorted(len(values) for values in self.dials_of(opt).values()) for opt in self.opts}
        first = self.opts[0]
        for opt, count in counts.items():
            if 0 in count:
                raise ValueError(f"dials of {opt}: one has no values")
            for name, values in self.dials_of(opt).items():
                if len({comparable(name, value) for value in values}) < len(values):
                    raise ValueError(f"dials of {opt}: a value of {name} is there twice: {list(values)}")
            if count != counts[first]:
                raise ValueError(
                    f"dials: {opt} has {count} values on its dials, {first} {counts[first]}; budgets are equal: give "
                    "every optimizer as many dials with as many values"
                )
            if self.trials is not None and self.trials < self._least_trials(opt):
                raise ValueError(
                    f"trials is {self.trials}; it must be {self._least_trials(opt)} at least, the multipliers and the "
                    "values of dials"
                )


def read_plan(path: Path, **changed: Any) -> LadderPlan:
    """The plan in a YAML file with the fields of `LadderPlan`; `changed`: fields that replace the file's.

    A UserError names the file and the key.
    """
    loaded = {**parse_plan(path, ("start", "dials", "variants")), **changed}
    given = {key: value for key, value in loaded.items() if value is not None}
    for key in given:
        if key not in LadderPlan.model_fields:
            raise UserError(f"{path}: unknown key '{key}'{nearest(key, LadderPlan.model_fields)}")
    return validated(LadderPlan, given, path)


# ---- the search ----
RATE = "lr_multiplier"
Settings = dict[str, Any]
"""`RATE` and the dials of a trial."""
Losses = Callable[[Sequence[Settings]], list[float]]
"""Settings -> final loss of each; infinite where it diverged or failed."""


@dataclass(frozen=True)
class TunedRung:
    """The result of tuning an optimizer on a rung."""

    opt: str
    rung: str
    settings: Settings
    """The best multiplier and dials."""
    loss: float
    """Of the best trial [nats/token]."""
    trials: int
    edges: list[str]
    """Dials, the multiplier among them, whose best value is an outermost one tried: a better one may lie beyond."""
    tried: list[tuple[Settings, float | None]]
    """Every trial and its loss; None: it failed."""


class Search:
    """The trials of one optimizer on one rung, `most` at most."""

    def __init__(self, losses: Losses, start: Settings, most: int):
        self._losses, self.best, self.most = losses, start, most
        self.tried: dict[str, tuple[Settings, float]] = {}

    @property
    def left(self) -> int:
        """Trials that may still be made."""
        return self.most - len(self.tried)

    def try_values(self, dial: str, values: Sequence[Any]) -> None:
        """Try the best settings with these values of a dial."""
        wanted = {json.dumps(each): each for each in ({**self.best, dial: value} for value in values)}
        new = {key: each for key, each in wanted.items() if key not in self.tried}
        new = dict(itertools.islice(new.items(), self.left))
        if new:
            losses = self._losses([*new.values()])
            self.tried |= {key: (each, loss) for (key, each), loss in zip(new.items(), losses, strict=True)}
        self.best = min(self.tried.values(), key=lambda trial: trial[1])[0]

    def line(self, dial: str) -> dict[Any, float]:
        """Value -> loss of the trials that differ from the best in one dial, by value."""
        rest = {key: value for key, value in self.best.items() if key != dial}
        same = [(each[dial], loss) for each, loss in self.tried.values() if rest.items() <= each.items()]
        numbers = all(
            isinstance(value, (int, float)) and value > 0 and value is not True for value, _ in same
        )
        return dict(sorted(same)) if numbers else {}

    def is_at_edge(self, dial: str) -> bool:
        """Whether the best value is an outermost one of several positive numbers."""
        known = [*self.line(dial)]
        return len(known) > 1 and self.best[dial] in (known[0], known[-1])

    def follow(self, dial: str) -> None:
        """Try values beyond the outermost one while that is best, at the distance of its neighbour."""
        while self.left and self.is_at_edge(dial) and math.isfinite(self.loss):
            known = [*self.line(dial)]
            beside = known[1] if self.best[dial] == known[0] else known[-2]
            self.try_values(dial, [rounded(self.best[dial] ** 2 / beside)])

    def refine(self, dial: str) -> bool:
        """Try the geometric mean of the best value and its better neighbour; False: there is none."""
        line = self.line(dial)
        known = [*line]
        at = known.index(self.best[dial]) if len(known) > 1 else 0
        beside = [known[i] for i in (at - 1, at + 1) if 0 <= i < len(known)]
        if not beside or math.isinf(self.loss):
            return False
        before = len(self.tried)
        self.try_values(dial, [rounded(math.sqrt(self.best[dial] * min(beside, key=line.__getitem__)))])
        return len(self.tried) > before

    @property
    def loss(self) -> float:
        """Loss of the best."""
        return min(loss for _, loss in self.tried.values())


def search(
    losses: Losses, multipliers: Sequence[float], dials: Mapping[str, Sequence[Any]], most: int
) -> Search:
    """The best multiplier and dials, by exactly `most` trials where there are so many to make."""
    middle = sorted(multipliers)[len(multipliers) // 2]
    found = Search(losses, {RATE: middle, **{name: values[0] for name, values in dials.items()}}, most)
    axes: dict[str, Sequence[Any]] = {RATE: multipliers, **dials}
    while True:
        before = found.best
        for name, values in axes.items():
            found.try_values(name, values)
            found.follow(name)
        if not found.left or found.best == before or math.isinf(found.loss):
            break
        best, first = found.best[RATE], sorted(multipliers)
        spacing = first[1] / first[0] if len(first) > 1 else 1.0
        axes[RATE] = [
            rounded(best / spacing),
            best,
            rounded(best * spacing),
        ]  # and the dials again, at what is best
    while found.left and found.refine(RATE):
        pass
    return found


def run_ladder(plan: LadderPlan, runner: Runner) -> tuple[list[TunedRung], list[str]]:
    """Run everything that is not finished; optimizers side by side, each from rung to rung.

    Returns:
        The tuned rungs; and optimizers (at a rung) of which every trial failed, so that there are no further seeds.
    """
    rungs = plan.rungs()
    cells = [cell for rung in rungs for cells in plan.planned(rung).values() for cell in cells]
    runner.check(cells)
    check_optimizers(cells)
    with runner, ThreadPoolExecutor(len(plan.opts)) as threads:
        try:
            ended = [*threads.map(lambda opt: _tune_optimizer(plan, opt, runner), plan.opts)]
        except BaseException:
            runner.stop()
            raise
    tuned = [each for found, _ in ended for each in found]
    write_json(runner.folder / "tuning.json", [asdict(each) for each in tuned])
    return tuned, [words for _, failed in ended for words in failed]


def _tune_optimizer(plan: LadderPlan, opt: str, runner: Runner) -> tuple[list[TunedRung], list[str]]:
    """(tuned rungs, rungs of which every trial failed) of an optimizer, from rung to rung."""
    tuned: dict[Rung, TunedRung] = {}
    failed: list[str] = []
    try:
        for place, rung in enumerate(plan.rungs()):
            before = tuned.get(plan.rung_before(rung))  # pyright: ignore[reportArgumentType]
            centre = plan.start.get(opt, 1.0) if before is None else before.settings[RATE]
            found = _tune(plan, opt, rung, centre, runner, (place, plan.opts.index(opt)))
            if found is None:
                failed.append(f"{opt} at {rung}")
            else:
                tuned[rung] = found
    except Queued:  # what depends on these runs waits for the next call
        pass
    return [*tuned.values()], failed


def _tune(
    plan: LadderPlan, opt: str, rung: Rung, centre: float, runner: Runner, place: tuple[int, int]
) -> TunedRung | None:
    """Trials, then more seeds at the best settings; None where every trial failed."""

    def cell(settings: Settings, seed: int) -> Cell:
        return plan.cell(
            opt, rung, settings[RATE], seed, {k: v for k, v in settings.items() if k != RATE}, place
        )

    def losses(trials: Sequence[Settings]) -> list[float]:
        seeds = plan.seeds[: plan.trial_seeds]
        runs = [[cell(each, seed) for seed in seeds] for each in trials]
        ended = runner.train([*itertools.chain(*runs)], f"{opt} at {rung}")
        return [sum(ended[run.name] for run in each) / len(each) for each in runs]

    multipliers = [rounded(centre * m) for m in plan.multipliers]
    found = search(losses, multipliers, plan.dials_of(opt), plan.trials_of(opt))
    if math.isinf(found.loss):
        return None
    runner.train(
        [cell(found.best, seed) for seed in plan.seeds[plan.trial_seeds :]], f"{opt} at {rung}{MORE_SEEDS}"
    )
    edges = [name for name in found.best if found.is_at_edge(name)]
    tried = [(settings, None if math.isinf(loss) else loss) for settings, loss in found.tried.values()]
    return TunedRung(opt, str(rung), found.best, found.loss, len(tried), edges, tried)

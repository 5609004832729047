"""The definition of a ladder: optimizers x sizes x horizons x batches, and what is tried for each of them.

    f       = tokens / (20 parameters)                 horizon; parameters as --tokens-per-param counts them
    omega   = factor x c sqrt(f)                       decay_law sqrt; c = 8 (coupled decay), 2 (log-time decay)
    omega   = factor x 4                               decay_law rules
    steps   = tokens / (batch x seq_len)               a batch is sequences per step; runs have equal tokens

Every optimizer has as many trials as every other: a plan whose dials differ in number is refused.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError, nearest
from danalab.optim.catalogue import OPTIMIZERS
from danalab.registry import Registry
from danalab.scaling.learning_rate import CHINCHILLA
from danalab.scaling.optimizers import OMEGA
from danalab.sweep.grid import Cell, expand, name_of, parse_plan
from danalab.train.config.fields import flag

DECAY_LAWS = ("rules", "sqrt")
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
    "lr": "multipliers, which are factors on the law's rate",
    "lr_multiplier": "multipliers",
}
"""Settings that a ladder varies -> keys that give them."""
_HALF_LIFE = re.compile(r"(\d*\.?\d+)\^\(batch/([1-9]\d*)\)")
"""A variant's setting with a constant half-life in tokens: 0.95^(batch/128) is 0.95 at a batch of 128."""


@dataclass(frozen=True)
class Rung:
    """A size at a horizon and a batch, where optimizers are tuned and compared."""

    size: Mapping[str, Any]
    """Its settings."""
    horizon: float | None
    """f; None: the plan has no horizons."""
    batch: int | None = None
    """Sequences per step; None: the plan has no batches."""

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.size.items()]
        words += [] if self.horizon is None else [f"f={self.horizon:g}"]
        return " ".join(words if self.batch is None else [*words, f"batch={self.batch}"])


@dataclass(frozen=True, kw_only=True)
class LadderPlan:
    """The definition of a ladder."""

    opts: tuple[str, ...]
    """Optimizers or `variants`; adamw is the baseline, or without it the first one."""
    sizes: tuple[dict[str, Any], ...]
    """Settings that make a size: {"heads": 3}, or d_model, n_layers and n_heads; `horizons` of its own, if any."""
    horizons: tuple[float, ...] = ()
    """f = tokens / (20 parameters) of every size; none: one horizon, that of `fixed`."""
    batches: tuple[int, ...] = ()
    """Sequences per step of every size and horizon, in the order of their runs; none: one batch, that of `fixed`."""
    multipliers: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Factors on the learning rate that are tried first; one: nothing is tuned. They multiply the law's rate; with
    horizons or batches, the best rate at the rung before."""
    trials: int | None = None
    """Number of learning rates that each optimizer tries on each rung: after `multipliers`, beyond the outermost where
    that one is the best, otherwise between the best and its better neighbour. None: `extensions`."""
    extensions: int = 2
    """Maximum number of multipliers tried beyond the outermost one, where that one is best."""
    start: dict[str, float] = field(default_factory=dict)
    """Optimizer -> factor on the law's rate, from which its multipliers start."""
    merge: str | None = None
    """linear, cosine or 1-sqrt: of a size only the longest horizon is trained, at a constant rate, and all horizons are
    read from its merged checkpoints (`danalab_annexes.ladder.merged`). None: every horizon is trained."""
    decay_law: str = "rules"
    """Strength of weight decay: rules (omega 4, or that of `fixed`) or sqrt."""
    dials: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    """Optimizer, or `all` -> setting -> values. The first value is used while learning rates are tried; the others are
    tried at the best rate, one dial after another."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> `opt` and settings of it; "0.95^(batch/128)" is a setting that depends on the batch."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The first one is for the trials."""
    trial_seeds: int = 1
    """Number of these seeds that every trial is run with; its loss is their mean."""
    fixed: dict[str, Any]
    """Settings that all runs have in common."""

    def __post_init__(self) -> None:
        for name in ("opts", "sizes", "multipliers", "seeds"):
            if not getattr(self, name):
                raise UserError(f"the ladder has no {name}: no run is left")
        for name in ("opts", "sizes", "multipliers", "seeds", "horizons", "batches"):
            values = getattr(self, name)
            if any(value in values[:i] for i, value in enumerate(values)):
                raise UserError(f"the ladder has one of its {name} twice: {values}")
        self._check_optimizers()
        for key in SET_BY_THE_LADDER:
            if key in self.fixed:
                raise UserError(f"fixed has {flag(key)}, which the ladder sets; leave it out: {SET_BY_THE_LADDER[key]}")
        for name in ("multipliers", "horizons", "batches"):
            if not all(map(_is_positive, getattr(self, name))):
                raise UserError(f"{name} are {getattr(self, name)}; each must be finite and positive")
        if not 1 <= self.trial_seeds <= len(self.seeds):
            raise UserError(
                f"trial_seeds is {self.trial_seeds}; it must be 1 to {len(self.seeds)}, the number of seeds"
            )
        if self.extensions < 0:
            raise UserError(f"extensions is {self.extensions}; it must be 0 or more")
        if self.trials is not None and self.trials < len(self.multipliers):
            raise UserError(f"trials {self.trials}: at least as many as multipliers, {len(self.multipliers)}")
        if self.trials is not None and self.trials > len(self.multipliers) == 1:
            raise UserError(f"trials {self.trials}: need two multipliers or more")
        self._check_horizons()
        if self.merge is not None:
            PROCEDURES.get("merge")(self)
        self._check_dials()

    def rungs(self) -> list[Rung]:
        """All sizes at all their horizons and batches: short horizons first, of one horizon small sizes first."""
        ordered = []
        for i, size in enumerate(self.sizes):
            own = {key: value for key, value in size.items() if key != "horizons"}
            horizons = self._horizons(size) if self.merge is None else self._horizons(size)[-1:]
            ordered += [(f or 0.0, i, Rung(own, f, b)) for f in horizons for b in self.batches or [None]]
        return [rung for _, _, rung in sorted(ordered, key=lambda each: each[:2])]

    @property
    def has_steps(self) -> bool:
        """Whether sizes have horizons or batches, and rungs so follow each other."""
        first = self.rungs()[0]
        return first.horizon is not None or first.batch is not None

    def rung_before(self, rung: Rung) -> Rung | None:
        """The rung from whose best learning rate the trials of `rung` start: the nearest of the batches before, else
        the next shorter horizon of the size, else the next smaller size at the horizon."""
        if rung.batch is not None and (place := self.batches.index(rung.batch)):
            nearest_batch = min(self.batches[:place], key=lambda each: abs(math.log(each / self.batches[place])))
            return replace(rung, batch=nearest_batch)
        if rung.horizon is None:
            return None
        every = [each for each in self.rungs() if each.batch == rung.batch]
        same = [each for each in every if each.size == rung.size and (each.horizon or 0) < rung.horizon]
        earlier = [each for each in every[: every.index(rung)] if each.horizon == rung.horizon]
        return (same or earlier or [None])[-1]

    def dials_of(self, opt: str) -> dict[str, tuple[Any, ...]]:
        """The optimizer's dials besides the learning rate."""
        return self.dials.get(opt, self.dials.get(ALL, {}))

    def least_trials(self, opt: str) -> int:
        """Number of settings that an optimizer tries on a rung, without `extensions`."""
        return (self.trials or len(self.multipliers)) + sum(len(values) - 1 for values in self.dials_of(opt).values())

    def planned(self, rung: Rung) -> dict[str, list[Cell]]:
        """Optimizer -> the runs of a rung, with the middle multiplier in place of those that are not known yet."""
        multipliers = sorted(map(float, self.multipliers))
        middle = multipliers[len(multipliers) // 2]
        trials, more = self.seeds[: self.trial_seeds], self.seeds[self.trial_seeds :]
        tried = {opt: [*multipliers, *[middle] * (self.least_trials(opt) - len(multipliers))] for opt in self.opts}
        runs = {
            opt: [*((m, seed) for m in tried[opt] for seed in trials), *((middle, seed) for seed in more)]
            for opt in tried
        }
        return {
            opt: [self.cell(opt, rung, self.start.get(opt, 1.0) * m, seed) for m, seed in each]
            for opt, each in runs.items()
        }

    def cell(self, opt: str, rung: Rung, multiplier: float, seed: int, dials: Mapping[str, Any] | None = None) -> Cell:
        """One run of the ladder; its data order goes with its seed; `dials` defaults to the first values."""
        defaults = {name: values[0] for name, values in self.dials_of(opt).items()}
        chosen = {**defaults, **(dials or {})}
        moved = {name: value for name, value in chosen.items() if value != defaults[name]}
        # Trials start from the best rate at the rung before: a ladder measures the law of the horizon.
        settings: dict[str, Any] = {} if "horizon_law" in self.fixed else {"horizon_law": "none"}
        variant = {key: self._at_batch(opt, key, value, rung) for key, value in self.variants.get(opt, {}).items()}
        settings |= {"opt": opt, **variant, **rung.size}
        name: dict[str, Any] = {"opt": opt, **rung.size}
        if rung.horizon is not None:
            settings["tokens_per_param"] = CHINCHILLA * rung.horizon
            name["f"] = rung.horizon
        if rung.batch is not None:
            settings["global_batch"] = name["b"] = rung.batch
        name |= {"lr_multiplier": multiplier, **moved, "seed": seed}
        omega = self._omega(settings["opt"], rung.horizon, chosen.pop(DECAY, 1.0))
        if omega is not None:
            settings["omega"] = omega
        settings |= {**chosen, "lr_multiplier": multiplier, "seed": seed, "data_seed": 1337 + seed}
        (checked,) = expand({}, self.fixed, [settings])
        cell = Cell(name_of(name), checked.settings, label=opt if opt in self.variants else None)
        return cell if self.merge is None else PROCEDURES.get("merge")(self).cell(cell, rung)

    @staticmethod
    def _at_batch(opt: str, key: str, value: Any, rung: Rung) -> Any:
        """A variant's setting on a rung: its value, or by its half-life."""
        if not isinstance(value, str) or (half_life := _HALF_LIFE.fullmatch(value.replace(" ", ""))) is None:
            return value
        if rung.batch is None:
            raise UserError(f"variants: {opt}: {key} is {value}; it needs batches in the file")
        return float(f"{float(half_life[1]) ** (rung.batch / int(half_life[2])):.6g}")

    def _omega(self, opt: str, horizon: float | None, factor: float) -> float | None:
        """Strength of weight decay; None: that of `fixed` or of the rules."""
        if self.decay_law == "sqrt":
            assert horizon is not None
            return float(f"{factor * _SQRT_DECAY[OPTIMIZERS.get(opt).decay] * math.sqrt(horizon):.6g}")
        return None if factor == 1 else factor * OMEGA

    def horizons_of(self, size: Mapping[str, Any]) -> list[float]:
        """All horizons of the size with these settings, in whichever entry of `sizes` they are."""
        alike = [each for each in self.sizes if {**each, "horizons": None} == {**size, "horizons": None}]
        return sorted({f for each in alike for f in self._horizons(each) if f is not None})

    def _horizons(self, size: Mapping[str, Any]) -> Sequence[float | None]:
        return sorted(map(float, size.get("horizons", self.horizons))) or [None]

    def _check_optimizers(self) -> None:
        names = [opt if opt in self.variants else OPTIMIZERS.canonical(opt) for opt in self.opts]
        for i, opt in enumerate(self.opts):
            if names[i] in names[:i]:
                raise UserError(f"the ladder has one of its opts twice: {opt} is {names[i]}")
        for opt, factor in self.start.items():
            if not _is_positive(factor):
                raise UserError(f"start: {opt} is {factor!r}; a positive factor on the law's rate is expected")

    def _check_horizons(self) -> None:
        each = [self._horizons(size) for size in self.sizes]
        with_horizons = [f is not None for horizons in each for f in horizons]
        for size in self.sizes:
            own = size.get("horizons", ())
            if not all(map(_is_positive, own)):
                raise UserError(f"horizons of a size are {own}; each must be a finite and positive number")
        if any(with_horizons) and not all(with_horizons):
            raise UserError("some sizes have horizons and some have none; give `horizons` for all")
        if any(with_horizons):
            for key in ("tokens_per_param", "iterations", "epochs"):
                if key in self.fixed:
                    raise UserError(f"fixed has {flag(key)} beside horizons, which set the length; leave one out")
        if self.batches:
            for key in ("global_batch", "acc_steps", "iterations"):
                if key in self.fixed:
                    raise UserError(f"fixed has {flag(key)} beside batches, which set it at equal tokens; leave it out")

    def _check_dials(self) -> None:
        if self.decay_law not in DECAY_LAWS:
            raise UserError(f"decay_law {self.decay_law}{nearest(self.decay_law, DECAY_LAWS)}: rules or sqrt")
        if self.decay_law == "sqrt" and None in [f for size in self.sizes for f in self._horizons(size)]:
            raise UserError("decay_law sqrt: is c sqrt(f) of horizons f; give horizons")
        moved = self.decay_law == "sqrt" or any(DECAY in dials for dials in self.dials.values())
        for key in ("omega", "weight_decay"):
            if moved and key in self.fixed:
                raise UserError(f"fixed has {flag(key)} beside a decay law or dial, which sets it; leave one out")
        counts = {opt: sorted(len(values) for values in self.dials_of(opt).values()) for opt in self.opts}
        first = self.opts[0]
        for opt, count in counts.items():
            if count != counts[first]:
                raise UserError(
                    f"dials: {opt} has {count} values on its dials, {first} {counts[first]}; budgets are equal: give "
                    "every optimizer as many dials with as many values"
                )


class Procedure:
    """What a ladder does beside training its runs, for each plan anew. UserError: the plan does not allow it."""

    last_rung: Rung | None = None
    """The rung that waits for all others; None: none."""

    def __init__(self, plan: LadderPlan):
        self.plan = plan

    def cell(self, cell: Cell, rung: Rung) -> Cell:
        """A run of the plan, with further settings."""
        return cell

    def before_last(self, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Called with the rows of all other runs before runs of the last rung start; again while there are some."""

    def losses(self, folder: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Name of a run -> the loss that counts in place of the final one."""
        return {}


PROCEDURES: Registry[type[Procedure]] = Registry("procedure of a ladder")
"""`merge` of a plan, and `preregister`; those of `danalab_annexes` are loaded where one is asked for."""


def _is_positive(value: Any) -> bool:
    """Whether a value of a file is a finite and positive number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


_FORMS = {
    "opts": "opts: [adamw, adana]",
    "heads": "heads: [2, 3]",
    "sizes": "sizes: [{d_model: 64, n_layers: 2, n_heads: 2}], or heads: [2, 3]",
    "horizons": "horizons: [1, 4, 16]",
    "batches": "batches: [8, 2, 32]",
    "multipliers": "multipliers: [0.5, 1, 2]",
    "trials": "trials: 5",
    "extensions": "extensions: 2",
    "seeds": "seeds: [0, 1, 2]",
    "trial_seeds": "trial_seeds: 2",
    "start": "start: {adamw: 0.5}",
    "merge": "merge: linear",
    "smaller": "smaller: ladder_small.yaml",
    "decay_law": "decay_law: sqrt",
    "dials": "dials: {all: {decay: [1, 0.5, 2]}}",
    "variants": "variants: {adana-kappa: {opt: adana, kappa: 0.75}}",
    "fixed": "fixed: {data: stdlib, seq_len: 256}",
}
"""Keys of a file and their forms."""
_BY_NAME = ("start", "dials", "variants")  # keys whose values are mappings by names of optimizers


def read_plan(path: Path) -> LadderPlan:
    """The plan in a YAML file with the fields of `LadderPlan` (`heads: [2, 3]` is short for sizes).

    `smaller` names the file, in the same folder, of smaller sizes, whose settings of each optimizer must be given.
    A UserError names the file and the key.
    """
    loaded = {key: value for key, value in parse_plan(path, _BY_NAME).items() if value is not None}
    for key, value in loaded.items():
        if key not in _FORMS:
            raise UserError(f"{path}: unknown key '{key}'{nearest(key, _FORMS)}")
        if not _has_form(key, value):
            raise UserError(f"{path}: {key} is {value!r}; expected is something like {_FORMS[key]}")
    if "trials" in loaded and "extensions" in loaded:
        raise UserError(f"{path}: both trials and extensions; trials contains what extensions would add")
    if "heads" in loaded:
        loaded["sizes"] = [*loaded.get("sizes", []), *({"heads": heads} for heads in loaded.pop("heads"))]
    for key in ("opts", "sizes"):
        if key not in loaded:
            raise UserError(f"{path}: no {key}, such as {_FORMS[key]}")
    for key in _BY_NAME:
        loaded[key] = _by_name(path, key, loaded.get(key, {}), (*loaded["opts"], *([ALL] if key == "dials" else [])))
    for opt, dials in loaded["dials"].items():
        for name, values in dials.items():
            if not isinstance(values, list) or not values:
                raise UserError(f"{path}: dials of {opt}: {name} is {values!r}; expected is a list of values")
        loaded["dials"][opt] = {name: tuple(values) for name, values in dials.items()}
    for name, variant in loaded["variants"].items():
        if "opt" not in variant:
            raise UserError(f"{path}: variants: {name} has no opt, such as {_FORMS['variants']}")
    smaller = loaded.pop("smaller", None)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in loaded.items()}
    plan = LadderPlan(**{"fixed": {}, **given})
    if smaller is not None:
        _require_settings_of(read_plan(path.parent / smaller), smaller, plan, path)
    return plan


def _require_settings_of(smaller: LadderPlan, name: str, plan: LadderPlan, path: Path) -> None:
    """Refuse a plan of larger sizes that leaves a setting, which the smaller ones tuned, to its default."""
    for opt in set(plan.opts) & set(smaller.opts):
        tuned = {*smaller.dials_of(opt), *smaller.variants.get(opt, {})}
        given = {*plan.dials_of(opt), *plan.variants.get(opt, {}), *plan.fixed}
        if missing := sorted(tuned - given - {"opt"}):
            raise UserError(
                f"{path}: {opt} has no {', '.join(missing)}, which {name} tunes; give the values that were best there "
                "in dials, variants or fixed"
            )


def _has_form(key: str, value: Any) -> bool:
    if key in ("extensions", "trials", "trial_seeds"):
        return isinstance(value, int) and not isinstance(value, bool)
    if key in ("merge", "decay_law", "smaller"):
        return isinstance(value, str)
    if key in ("dials", "variants"):
        return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    if key in ("fixed", "start"):
        return isinstance(value, dict)
    one = {"opts": str, "sizes": dict, "multipliers": (int, float), "horizons": (int, float)}.get(key, int)
    return isinstance(value, list) and all(isinstance(each, one) for each in value)


def _by_name(path: Path, key: str, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A mapping of the file by names of optimizers as `opts` spells them; adamw_decaying_wd is adamw-decaying-wd."""
    spelled = {name.replace("-", "_"): name for name in names}
    for name in given:
        if name.replace("-", "_") not in spelled:
            raise UserError(f"{path}: {key} has '{name}'{nearest(name, names)}, which is not in opts")
    return {spelled[name.replace("-", "_")]: value for name, value in given.items()}

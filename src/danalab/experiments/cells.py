"""Grids over flags of `danalab train` and lists of runs, checked before training.

fixed: {arch: enoki, data: stdlib, seq_len: 256}
grid:  {opt: [adamw, adana], heads: [2, 3], seed: [0, 1, 2]}      # every combination
runs:  [{opt: adamw, heads: 4, seed: 0}]                          # and these
"""

import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from danalab.errors import UserError, nearest
from danalab.files import read_yaml
from danalab.models.architectures import ALIASES as OTHER_ARCHITECTURES
from danalab.models.architectures import ARCHITECTURES
from danalab.optimizer_facts import ALIASES as OTHER_OPTIMIZERS
from danalab.optimizer_facts import FACTS, is_address, short_name
from danalab.tables import word_of
from danalab.train.config.flags import SPELLINGS, expand_paths, field_types, flag, names_of, plain_value
from danalab.train.config.train_config import TrainConfig

LONGEST_NAME = 100
SHORT = {
    "heads": "h",
    "lr_multiplier": "lrx",
    "seed": "s",
    "weight_decay": "wd",
    "iterations": "n",
    "d_model": "d",
    "n_layers": "L",
    "n_heads": "H",
}
"""Short names of settings in run names; others have their own name, `opt` and `arch` only their value."""
PATH_SETTINGS = ("rules", "init_from")  # settings that name a file or a folder
_SIZES_AND_SEEDS = (
    "heads",
    "size",
    "d_model",
    "n_layers",
    "n_heads",
    "head_dim",
    "mlp_dim",
    "seed",
    "data_seed",
    "lr",
    "lr_multiplier",
    "iterations",
    "tokens_per_param",
    "global_batch",
    "omega",
)
"""Settings whose values make no optimizer refuse the others."""
_DEFAULTS = {each.name: each.default for each in fields(TrainConfig) if each.default is not MISSING}
_NOT_VARIED = names_of(TrainConfig, "job") | {"optimizer_settings"}  # fields of one job, not of a grid
_JOB_ONLY = names_of(TrainConfig, "job") - {"extend_to"} | {"local_ckpt_dir"}
"""Settings of the job and its place, which do not change the run."""
_SPELLINGS = {
    "opt": {name: name for name in FACTS} | OTHER_OPTIMIZERS,
    "arch": {name: name for name in ARCHITECTURES} | OTHER_ARCHITECTURES,
    "distributed_backend": {"nccl": "ddp", "gloo": "ddp"},
    "dtype": SPELLINGS,
    "init": {},
    "scheduler": {},
}
"""Spellings of one value, beside case, underscores and hyphens, which do not matter for any of these settings."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    """Name of its folder: readable, and the same for the same settings."""
    settings: dict[str, Any]
    """Fields of `TrainConfig`."""
    label: str | None = None
    """Name of the optimizer in rows; default that of `opt`."""
    place: tuple[int, ...] = ()
    """Its order among all runs of a folder."""

    def config(self, run_dir: Path) -> TrainConfig:
        known = {field.name for field in fields(TrainConfig)}
        own = {key: value for key, value in self.settings.items() if key in known}
        rest = {key: value for key, value in self.settings.items() if key not in known}
        try:
            return TrainConfig(**own, run_dir=run_dir, optimizer_settings=rest)
        except TypeError as error:
            raise UserError(f"run {self.name}: a setting has the wrong type: {error}") from error


def check_optimizers(cells: Sequence[Cell]) -> None:
    """Build each optimizer, with each of its settings, on a tiny model.

    UserError: one refuses its settings, needs a package, or cannot be run by the trainer.
    """
    from danalab.models import build_model
    from danalab.models.config import ModelConfig
    from danalab.train.trainer import OptimizerDriver

    model = build_model(ModelConfig("enoki", 8, 1, 1, 8, 16, 16, 8), seed=0)
    checked: set[str] = set()
    for cell in cells:
        key = repr(
            sorted((name, value) for name, value in cell.settings.items() if name not in _SIZES_AND_SEEDS)
        )
        if key not in checked:
            checked.add(key)
            try:
                OptimizerDriver.build(resolved(cell.config(Path(cell.name))), model)
            except UserError as error:
                raise UserError(f"run {cell.name}: {error}") from error


def resolved(config: TrainConfig) -> Any:
    """The configuration with every default, and the plan of its size, steps and FLOPs."""
    from danalab.train.config.resolve import resolve

    return resolve(config, known_vocabulary(config.source, config.tokenizer))


@cache
def known_vocabulary(data: str, tokenizer: str | None) -> Any:
    """`danalab.data.vocabulary_of`, read once."""
    from danalab.data import vocabulary_of

    return vocabulary_of(data, tokenizer)


def parse_assignments(words: Sequence[str], what: str = "--grid") -> dict[str, list[Any]]:
    """`["opt=adamw,adana", "heads=2,3"]` as a mapping of fields to values."""
    assigned = _assigned(words, what).items()
    return {
        key: [typed_value(key, each) for each in text.split(",") if each.strip()] for key, text in assigned
    }


def parse_fixed(words: Sequence[str]) -> dict[str, Any]:
    """`["seq-len=256", "data=a:0.7,b:0.3"]` as a mapping of fields to one value each; commas are part of a value."""
    fixed = {}
    for key, text in _assigned(words, "--fixed").items():
        if not text.strip():
            raise UserError(f"--fixed {key}=: no value for {flag(key)}")
        kinds = _kinds(key)  # an optimizer's setting has none: betas=0.9,0.95 are two numbers, as in --set
        is_list = any(get_origin(kind) is tuple for kind in kinds) or (not kinds and "," in text)
        fixed[key] = (
            [typed_value(key, each) for each in text.split(",")] if is_list else typed_value(key, text)
        )
    return fixed


def _assigned(words: Sequence[str], what: str) -> dict[str, str]:
    """KEY=TEXT as fields and their text, each once."""
    assigned: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not equals or not key:
            raise UserError(f"{what} {word}: KEY=VALUE,VALUE,... is expected")
        if key in assigned:
            raise UserError(f"{what} {word}: {flag(key)} appears twice")
        assigned[key] = text
    return assigned


def typed_value(key: str, value: Any) -> Any:
    """A value as the field `key` of `TrainConfig` has it: 1e3 is 1000 for a whole number, "none" is text for a name.

    What does not fit the field stays as it is, for `expand` to refuse; other keys take `plain_value`.
    """
    kinds = _kinds(key)
    if isinstance(value, str):
        word = value.strip()
        if bool in kinds:
            word = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(word.lower(), word)
        # Path, str, Literal["..."]: text, but "none" means automatic where the field has that.
        is_text = any(kind in (str, Path) or get_origin(kind) is Literal for kind in kinds)
        automatic = (
            type(None) in kinds and word.lower() == "none" and not any("none" in get_args(k) for k in kinds)
        )
        if is_text and not automatic:
            value = expand_paths(word, field_types(TrainConfig)[key])  # pyright: ignore[reportArgumentType]
        else:
            value = None if is_text else plain_value(word)
    if int in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@cache
def _kinds(key: str) -> tuple[Any, ...]:
    """The types that a field of `TrainConfig` may have; empty for keys of optimizers."""
    kind = get_type_hints(TrainConfig).get(key)
    return () if kind is None else (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,))


def parse_plan(path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """A YAML mapping: keys as fields, numbers as numbers, paths relative to the file.

    Values of the keys `names` are mappings by names of the user's, which stay as they are spelled.
    """
    loaded = read_yaml(path) or {}
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a mapping is expected, not {type(loaded).__name__}")
    try:
        return _settings(loaded, path, names)
    except RecursionError:
        raise UserError(f"{path}: a value is nested too deeply, or contains itself") from None


def read_grid(path: Path) -> tuple[dict[str, Any], dict[str, list[Any]], list[dict[str, Any]]]:
    """(fixed, grid, runs) of a YAML file."""
    loaded = parse_plan(path)
    for key in loaded:
        if key not in ("fixed", "grid", "runs"):
            raise UserError(f"{path}: unknown key '{key}'{nearest(str(key), ('fixed', 'grid', 'runs'))}")
    fixed, grid, runs = loaded.get("fixed") or {}, loaded.get("grid") or {}, loaded.get("runs") or []
    if not isinstance(fixed, dict) or not isinstance(grid, dict) or not isinstance(runs, list):
        raise UserError(f"{path}: fixed and grid are mappings, runs is a list")
    if not all(isinstance(run, dict) for run in runs):
        raise UserError(f"{path}: each of runs is a mapping of settings")
    return (
        fixed,
        {key: values if isinstance(values, list) else [values] for key, values in grid.items()},
        runs,
    )


def _settings(loaded: Mapping[Any, Any], file: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Fields by their names in code and values by their types at every depth."""
    settings = {}
    for given, value in loaded.items():
        key = str(given).replace("-", "_")
        if key in settings:
            raise UserError(f"{file}: {key} appears twice")
        if key in names and isinstance(value, dict):
            settings[key] = {str(name): _typed(str(name), each, file) for name, each in value.items()}
        else:
            settings[key] = _typed(key, value, file)
    return settings


def _typed(name: str, value: Any, file: Path) -> Any:
    if isinstance(value, dict):
        return _settings(value, file)
    if isinstance(value, list):
        return [_typed(name, each, file) for each in value]
    typed = typed_value(name, value)
    if name in PATH_SETTINGS and isinstance(typed, str):
        if not (path := file.parent / typed).exists():
            raise UserError(
                f"{file}: {name} is {typed}; {path} does not exist (paths are relative to the file)"
            )
        return str(path)
    if name in ("data", "tokenizer", "opt") and isinstance(typed, str):
        return ",".join(_beside(file, part) for part in typed.split(","))
    return typed


def _beside(file: Path, part: str) -> str:
    """PATH, PATH:WEIGHT (data) or PATH:NAME (opt): relative to the file where it has a folder and exists there."""
    path, colon, weight = part.partition(":")
    return f"{file.parent / path}{colon}{weight}" if "/" in path and (file.parent / path).exists() else part


def expand(
    grid: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any], runs: Sequence[Mapping[str, Any]] = ()
) -> list[Cell]:
    """All runs of a grid (every combination, the last key fastest) and of a list."""
    for key in (key for settings in (fixed, grid, *runs) for key in settings):
        _require_field(key)
    for key in fixed:
        if key in grid:
            raise UserError(f"{flag(key)} is both fixed and in the grid")
    for key, values in grid.items():
        if not values:
            raise UserError(f"the grid has no value for {flag(key)}: no run is left")
    products = itertools.product(*grid.values()) if grid else ()
    wanted = [*(dict(zip(grid, values, strict=True)) for values in products), *map(dict, runs)]
    if not wanted:
        raise UserError("no run: give a grid (opt=adamw,adana seed=0,1) or a list of runs")
    cells: list[Cell] = []
    seen: set[str] = set()
    for varied in wanted:
        settings = {**fixed, **varied}
        if settings.get("lr") is not None and settings.get("lr_multiplier") is not None:
            raise UserError(
                f"the run {name_of(varied)} has both --lr and --lr-multiplier, a factor on the default rate: "
                "leave one of them out"
            )
        given = {key: value for key, value in settings.items() if value is not None}
        values = {key: comparable(key, value) for key, value in (_DEFAULTS | given).items()}
        same = json.dumps(values, sort_keys=True)
        if same in seen:
            raise UserError(
                f"the run {name_of(varied)} appears twice; 1 and 1.0, adana and ADana are the same value"
            )
        seen.add(same)
        cells.append(Cell(name_of(varied), settings))
    counts = Counter(cell.name for cell in cells)
    return [
        cell if counts[cell.name] == 1 else replace(cell, name=_hashed(cell.name, cell.settings))
        for cell in cells
    ]


def comparable(key: str, value: Any) -> str | None:
    """A setting as text that is equal for equal values: 1 and 1.0, adana and ADana, data and ./data/."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(comparable(key, each)) for each in value)
    if value is None:
        return None
    if key in _SPELLINGS and not is_address(str(value)):
        names = {word_of(other): name for other, name in _SPELLINGS[key].items()}
        return names.get(word_of(str(value)), word_of(str(value)))
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return os.path.normpath(str(value))


def _require_field(key: str) -> None:
    from danalab.optim import list_optimizers, settings_of

    known = [field.name for field in fields(TrainConfig) if field.name not in _NOT_VARIED]
    current = key.replace("-", "_")
    if key not in known and not any(current in settings_of(name) for name in list_optimizers()):
        hint = nearest(key, known)
        raise UserError(
            f"the grid has the unknown key '{key}'{hint}; keys are flags of danalab train and of --opt"
        )


def name_of(varied: Mapping[str, Any]) -> str:
    """The folder name of a run, from the settings that vary: the optimizer first, then in their order."""
    first = [key for key in ("arch", "opt") if key in varied]
    parts = [short_name(str(varied[key])) for key in first]
    parts += [f"{SHORT.get(key, key)}{_shown(varied[key])}" for key in varied if key not in first]
    name = "-".join(parts).replace("/", "_").replace(" ", "") or "run"
    return name if len(name) <= LONGEST_NAME else _hashed(name, varied)


def portable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without paths of this machine: of absolute paths only the last part."""
    kept = {key: value for key, value in settings.items() if key not in _JOB_ONLY}
    for key in ("data", "tokenizer", *PATH_SETTINGS):
        if isinstance(kept.get(key), str):
            kept[key] = ",".join(
                PurePath(part).name if PurePath(part).is_absolute() else part for part in kept[key].split(",")
            )
    return kept


def _hashed(name: str, settings: Mapping[str, Any]) -> str:
    """A name with a hash of its settings, where the plain name is too long or not unique."""
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True, default=str).encode()).hexdigest()[:10]
    return f"{name[: LONGEST_NAME - 11]}-{digest}"


def _shown(value: Any) -> str:
    """A value in a name; different values have different texts."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)

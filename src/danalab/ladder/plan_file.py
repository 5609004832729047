"""The file of a ladder: YAML with the fields of `LadderPlan`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from danalab.errors import UserError, nearest
from danalab.ladder.plan import ALL, LadderPlan
from danalab.ladder.runs.grid import parse_plan

_FORMS = {
    "opts": "opts: [adamw, adana]",
    "heads": "heads: [2, 3]",
    "sizes": "sizes: [{d_model: 64, n_layers: 2, n_heads: 2}], or heads: [2, 3]",
    "horizons": "horizons: [1, 4, 16]",
    "multipliers": "multipliers: [0.5, 1, 2]",
    "trials": "trials: 5",
    "extensions": "extensions: 2",
    "seeds": "seeds: [0, 1, 2]",
    "start": "start: {adamw: 0.5}",
    "decay_law": "decay_law: sqrt",
    "dials": "dials: {all: {decay: [1, 0.5, 2]}}",
    "variants": "variants: {adana-kappa: {opt: adana, kappa: 0.75}}",
    "fixed": "fixed: {data: stdlib, seq_len: 256}",
}
"""Keys of a file and their forms."""
_BY_NAME = ("start", "dials", "variants")
"""Keys whose values are mappings by names of optimizers."""


def read_plan(path: Path) -> LadderPlan:
    """The plan in a YAML file with the fields of `LadderPlan` (`heads: [2, 3]` is short for sizes).

    Raises:
        UserError: names the file and the key, or see `LadderPlan`.
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
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in loaded.items()}
    return LadderPlan(**{"fixed": {}, **given})


def _has_form(key: str, value: Any) -> bool:
    """Whether the value of a file's key has the right type."""
    if key in ("extensions", "trials"):
        return isinstance(value, int) and not isinstance(value, bool)
    if key == "decay_law":
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

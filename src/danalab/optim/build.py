"""Optimizers by name: `build_optimizer("adana", model, lr=1e-3, omega=4.0, horizon=10_000)`.

The name may also be an address: `FILE.py:NAME` or `module:NAME` of a class or function that is called as
`NAME(params, lr=..., **settings)`, such as `pytorch_optimizer:Adan`.
"""

import copyreg
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn

from danalab.errors import UserError, nearest
from danalab.tables import lookup

from .adamw import AdamWDecayingWD
from .ademamix import AdEMAMix, AdEMAMixDecayingWD
from .base import Optimizer, check_settings, coupled_decay
from .dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from .experimental import AutoDana, Dana, SignDana, snoo, snoo_dana
from .groups import decay_groups
from .muon import DanaMuon, DMuon, Manau, Muon

Build = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Build | str] = {
    "adamw": "danalab.optim.baselines:adamw",
    "adana": ADana,
    "dana-mk4": DanaMK4,
    "dana-star": DanaStar,
    "dana-star-mk4": DanaStarMK4,
    "adamw-decaying-wd": AdamWDecayingWD,
    "ademamix": AdEMAMix,
    "ademamix-decaying-wd": AdEMAMixDecayingWD,
    "muon": Muon,
    "d-muon": DMuon,
    "dana-muon": DanaMuon,
    "manau": Manau,
    "dana": Dana,
    "sign-dana": SignDana,
    "auto-dana": AutoDana,
    "snoo": snoo,
    "snoo-dana": snoo_dana,
    "sgd": "danalab.optim.baselines:sgd",
    "soap": "danalab.optim.baselines:soap",
    "lion": "danalab.optim.baselines:lion",
    "prodigy": "danalab.optim.baselines:prodigy",
    "sophia": "danalab.optim.baselines:SophiaG",
    "adopt": "danalab.optim.baselines:adopt",
    "mars": "danalab.optim.baselines:mars",
    "adafactor": "danalab.optim.baselines:adafactor",
    "lamb": "danalab.optim.baselines:lamb",
    "sf-adamw": "danalab.optim.baselines:sf_adamw",
    "sf-sgd": "danalab.optim.baselines:sf_sgd",
    "signsgd": "danalab.optim.baselines:signsgd",
    "signum": "danalab.optim.baselines:signum",
}
"""Name -> class or function, called as `build(params, lr=..., **settings)`; or its address, if it needs a
library."""

ALIASES = {"sophiag": "sophia"}
_DECAY = {"weight_decay", "wd_ts", "omega", "horizon"}  # settings of independent weight decay


def list_optimizers() -> list[str]:
    """Names of all optimizers."""
    return list(OPTIMIZERS)


def find_optimizer(name: str) -> Build:
    """The class or function of an optimizer. UserError: unknown name, or nothing at the address."""
    if not isinstance(name, str):
        raise UserError(
            f"the optimizer's name is a {type(name).__name__}; give the name first, then the model"
        )
    found = lookup(OPTIMIZERS, ALIASES.get(name.lower(), name), "optimizer", own=True)
    takes = inspect.signature(found).parameters
    if "lr" not in takes:
        raise UserError(f"optimizer '{name}' takes no lr; it must be callable as NAME(params, lr=...)")
    lacks = ", ".join(sorted(_DECAY - takes.keys()))
    if lacks and getattr(found, "decay_bound", None) is not None:
        raise UserError(f"optimizer '{name}' has decay_bound, but takes no {lacks}")
    return found


def build_optimizer(
    name: str, model_or_params: nn.Module | Iterable[Any], lr: float | None = None, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer `name` for a model or for parameters.

    Args:
        name: see `list_optimizers`; underscores and hyphens are the same. Or an address, FILE.py:NAME.
        model_or_params: a model becomes parameter groups by the types of its modules
            (`danalab.optim.groups`); parameters, named parameters or groups are taken as they are.
        lr: peak learning rate; None: the default of the class.
        settings: hyper-parameters, see `settings_of(name)`. Every optimizer with weight decay takes `omega`
            and `horizon`: where its decay is multiplied by the learning rate it is omega / (lr horizon), at
            most 1.
    Raises:
        UserError: unknown name or setting, or a value out of range.
    """
    build = find_optimizer(name)
    known = settings_of(name)
    rate = lr if lr is not None else known["lr"].default
    run = {}
    if "omega" not in known and "weight_decay" in known:
        run = {key: settings.pop(key) for key in ("omega", "horizon") if key in settings}
    settings = read_settings(name, settings)
    try:
        decay = coupled_decay(name, {**settings, **run, "lr": rate}) if run else None
    except ValueError as error:
        raise UserError(str(error)) from error
    settings |= {} if decay is None else {"weight_decay": decay}
    params: Any = model_or_params
    if isinstance(params, nn.Module) and not (isinstance(build, type) and issubclass(build, Optimizer)):
        params = decay_groups(params)
    try:
        optimizer = build(params, lr=rate, **settings)
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, UserError) else UserError(f"optimizer '{name}': {error}") from error
    if any(
        base.__module__.startswith("pytorch_optimizer") for base in type(optimizer).__mro__
    ):  # their steps are wrong inside a compiled graph
        optimizer.step = MethodType(torch._disable_dynamo(type(optimizer).step), optimizer)
        copyreg.pickle(type(optimizer), _with_attributes)  # pyright: ignore[reportArgumentType]
    return optimizer


def _with_attributes(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """How a library's optimizer is copied and pickled: with its own attributes, which torch's classes lack."""
    state = {
        key: value for key, value in vars(optimizer).items() if not key.startswith("_") and key != "step"
    }
    return copyreg.__newobj__, (type(optimizer),), state  # pyright: ignore[reportAttributeAccessIssue]


# ---- settings, as the command line, YAML and the documentation show them ----


@dataclass(frozen=True)
class Setting:
    """A setting of an optimizer: the default of its constructor, and what the docstring says of it."""

    default: Any
    help: str


def settings_of(name: str) -> dict[str, Setting]:
    """The settings of an optimizer, `lr` the first, from the signature and docstring of its class."""
    build = find_optimizer(name)
    texts: dict[str, str] = {}
    for each in reversed(build.__mro__ if isinstance(build, type) else (build,)):
        texts |= arguments_in(each.__doc__ or "")
    _, *parameters = inspect.signature(build).parameters.values()
    return {
        parameter.name: Setting(parameter.default, texts.get(parameter.name, ""))
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def arguments_in(docstring: str) -> dict[str, str]:
    """Argument -> text of a docstring's `Args:` section."""
    section = re.search(
        r"^( *)Args:\n((?:\1 +.*\n|\s*\n)+)", inspect.cleandoc(docstring) + "\n", re.MULTILINE
    )
    entries = re.split(r"^    (?=\w+: )", section[2] if section else "", flags=re.MULTILINE)
    pairs = (entry.split(": ", 1) for entry in entries if ": " in entry)
    return {name: " ".join(text.split()) for name, text in pairs}


def read_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their own names and as values, from names of any spelling and values or text, as of
    `--set kappa=0.8`. UserError: an unknown one, or a value out of range."""
    known = settings_of(name)
    values = {}
    for spelled, value in given.items():
        setting = spelled.replace("-", "_")
        if setting not in known:
            have = ", ".join(known)
            raise UserError(
                f"optimizer '{name}' has no setting '{spelled}'{nearest(setting, known)}; it has: {have}"
            )
        values[setting] = read_value(value) if isinstance(value, str) else value
    try:
        check_settings(name, values)
    except ValueError as error:
        raise UserError(str(error)) from error
    return values


def read_value(text: str) -> Any:
    """none, true, false, a number, several of them with commas between, or else the text."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        numbers = [
            float(part) if re.search(r"[.einf]", part.lower()) else int(part) for part in text.split(",")
        ]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else tuple(numbers)

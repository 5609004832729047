"""What is judged: `adana`, `adana:kappa=0.8,omega=2`, `FILE.yaml`, `module:NAME`, `FILE.py:NAME`.

NAME is an optimizer class, or a function, called as `NAME(groups, lr=..., **settings)` with parameter groups (decayed
and not decayed). A YAML file has `opt` (any of the other forms), and settings of it beside: `{opt: adana, kappa: 0.8}`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab import __version__
from danalab.errors import UserError
from danalab.files import read_yaml
from danalab.optim import optimizer_spec
from danalab.optim.catalogue import OPTIMIZERS, is_address
from danalab.optim.registry import OptimizerSpec, read_settings
from danalab.plugins import digests, source_digest


@dataclass(frozen=True)
class Contestant:
    """One side of a judgement; pickles."""

    label: str
    """What the user typed."""
    opt: str
    """A registered name, or FILE.py:NAME or module:NAME."""
    settings: tuple[tuple[str, Any], ...]
    digest: str
    """Of what else determines its runs: code of one's own, or the package's version; settings."""

    @property
    def spec(self) -> OptimizerSpec:
        return optimizer_spec(self.opt)


def read_contestant(text: str) -> Contestant:
    """The contestant that a word names; UserError: no such optimizer, file, module, name or setting."""
    if Path(text).suffix in (".yaml", ".yml"):
        content = read_yaml(text)
        if not isinstance(content, Mapping) or not isinstance(content.get("opt"), str):
            raise UserError(f"{text}: a contestant needs an optimizer, such as 'opt: adana'")
        return _contestant(text, content["opt"], {key: value for key, value in content.items() if key != "opt"})
    opt, given = _split(text)
    return _contestant(text, opt, given)


def _split(text: str) -> tuple[str, dict[str, str]]:
    """`adana:kappa=0.8,omega=2` -> ("adana", {"kappa": "0.8", "omega": "2"}); commas in a value's numbers stay."""
    head, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        return text, {}
    given: dict[str, str] = {}
    for word in tail.split(","):
        name, equals, value = word.partition("=")
        if equals:
            given[name.strip()] = value.strip()
        elif given:  # betas=0.9,0.99
            given[list(given)[-1]] += f",{word}"
        else:
            raise UserError(f"contestant '{text}': '{word}' is no setting; write NAME:SETTING=VALUE,...")
    return head, given


def _contestant(label: str, opt: str, given: Mapping[str, Any]) -> Contestant:
    spec = optimizer_spec(opt)
    if spec.closure or spec.hessian:
        raise UserError(f"contestant '{label}': the step of {spec.name} needs more than gradients; it cannot be judged")
    settings = read_settings(spec, given)
    plugin = "" if is_address(opt) else OPTIMIZERS.plugin(opt)
    code = source_digest(opt) if is_address(opt) else digests().get(plugin, f"danalab {__version__}")
    what = json.dumps([code, spec.name, settings], sort_keys=True, default=str)
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return Contestant(label, spec.name, tuple(settings.items()), digest)

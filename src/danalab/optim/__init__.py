"""Optimizers as a library: the Dana family, schedules, and a registry. Needs torch and nothing else.

Names are imported when first used, so that `danalab.optim.schedules` does not load torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from danalab.lazy import attach_stub

_listed, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name; or the class that is made of a rule, `LogRms` of the row log-rms."""
    if name in __all__ or not name[:1].isupper():
        return _listed(name)
    return getattr(import_module("danalab.optim.optimizers.elementwise"), name)


MOVED = {
    "core": "optimizers.base",
    "core.rule": "rules.rule",
    "elementwise": "optimizers.elementwise",
    "elementwise.scalars": "rules.scalars",
    "matrix": "optimizers.matrix",
    "matrix.newton_schulz": "optimizers.matrix.newton_schulz",
    "registry.spec": "registry",
}
"""Modules that the documentation of version 0.1 names -> where their names are now; for one release."""


class _Moved(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(f"danalab.optim.{MOVED[self.__name__.removeprefix('danalab.optim.')]}"), name)


for _name in MOVED:
    sys.modules[f"danalab.optim.{_name}"] = _Moved(f"danalab.optim.{_name}")

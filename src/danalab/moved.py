"""Modules that have moved: until 0.4 the old path imports the new module, with one DeprecationWarning.

    danalab.ladder.horizon -> danalab_annexes.ladder.horizon

The finder that `danalab` appends to `sys.meta_path` asks here for modules that no other finder has.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from danalab.plugins import load_annexes

_RUNS = {name: name for name in ("estimate", "executors", "grid", "jobs", "pool", "processes")} | {"sweep": "run"}

MOVED = {"danalab.train.evaluation.evaluator": "danalab.train.evaluation"} | {
    f"danalab.ladder.runs.{old}": f"danalab.sweep.{new}" for old, new in _RUNS.items()
}
"""Old path -> new path; `danalab_annexes.moved` adds its own. A package of these that held nothing has no row."""


def find_spec(name: str) -> ModuleSpec | None:
    """How to import `name`, a module that has moved or a package of some; None: it is neither."""
    load_annexes("moved module")
    is_package = any(old.startswith(f"{name}.") for old in MOVED)
    return ModuleSpec(name, _Loader(), is_package=is_package) if name in MOVED or is_package else None


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        if old not in MOVED:
            return  # an empty package
        warnings.warn(f"{old} is now {MOVED[old]}; the old path works until 0.4", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])
        for row, new in MOVED.items():  # a package would find its own modules once more, under their old paths
            if row.startswith(f"{old}.") and new in sys.modules:
                sys.modules[row] = sys.modules[new]

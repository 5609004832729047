"""Verbs whose work is outside of `danalab`: in the package `danalab_bench`, which wheels carry beside it."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[4] / "bench"
"""Where that package lies in a source tree."""


def subverbs(module: str) -> dict[str, Any]:
    """`SUBVERBS` of a module of `danalab_bench`."""
    if (CHECKOUT / "danalab_bench").is_dir() and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return import_module(f"danalab_bench.{module}").SUBVERBS

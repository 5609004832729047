"""Measure speed on this machine. Each command times danalab and a named peer in turns and prints the ratio."""

import sys
from importlib import import_module
from pathlib import Path

CHECKOUT = Path(__file__).parents[3] / "bench"
"""Where the package of the measures lies in a source tree; a wheel carries it beside this one."""
if (CHECKOUT / "danalab_bench").is_dir() and str(CHECKOUT) not in sys.path:
    sys.path.append(str(CHECKOUT))

SUBVERBS = import_module("danalab_bench.verbs").SUBVERBS

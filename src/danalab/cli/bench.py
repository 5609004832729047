"""Measure speed on this machine. Each command times danalab and a named peer in turns and prints the ratio."""

import sys
from importlib import import_module
from pathlib import Path

from danalab.errors import UserError

CHECKOUT = Path(__file__).parents[3] / "bench"
"""Where the package of the measures lies in a source tree; an installed wheel is without it."""
if (CHECKOUT / "danalab_bench").is_dir() and str(CHECKOUT) not in sys.path:
    sys.path.append(str(CHECKOUT))

try:
    VERBS = import_module("danalab_bench.verbs").VERBS
except ModuleNotFoundError as error:
    if error.name != "danalab_bench":
        raise
    message = "danalab bench needs a source tree, not an installed wheel: in a clone, pip install -e '.[lab]'"
    raise UserError(message) from None

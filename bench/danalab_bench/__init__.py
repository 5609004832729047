"""The measures of `danalab bench`: speed as ratios to named peers, both measured in one run.

A package of its own: nothing in `danalab` needs it, apart from that verb, and wheels carry it beside `danalab`.
"""

import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """The environment of a child process that imports this package, from where it was imported here."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), **more}

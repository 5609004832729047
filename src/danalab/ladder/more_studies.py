"""The studies of this package, in the order of their tables and sections."""

from typing import Any

from danalab.ladder.studies import STUDIES
from danalab.ladder.horizon import Horizons

STUDIES.add("horizon", Horizons())

"""The studies of this package, in the order of their tables and sections."""


from danalab.ladder.horizon import Horizons
from danalab.ladder.studies import STUDIES

STUDIES.add("horizon", Horizons())

"""The studies of this package, in the order of their tables and sections."""

from danalab.ladder.studies import STUDIES
from danalab_annexes.ladder.batch import Batches
from danalab_annexes.ladder.curvature import Curvature
from danalab_annexes.ladder.exponents import Exponents
from danalab_annexes.ladder.horizon import Horizons
from danalab_annexes.ladder.inside import Inside
from danalab_annexes.ladder.preregistration import Registered

for _study in (Exponents(), Curvature(), Horizons(), Batches(), Registered(), Inside()):
    STUDIES.add(_study.name, _study)

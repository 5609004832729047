"""The studies of this package, in the order of their tables and sections."""

from typing import Any

from danalab.ladder.studies import STUDIES, LadderStudy, PageSection
from danalab_annexes.ladder.batch import Batches
from danalab_annexes.ladder.curvature import Curvature
from danalab_annexes.ladder.exponents import Exponents
from danalab_annexes.ladder.horizon import Horizons
from danalab_annexes.ladder.preregistration import Registered


class Inside(LadderStudy):
    """Inside the optimizers: schedules and states that runs recorded; sweeps of kappa and gamma3."""

    name = "inside"
    sections = (
        PageSection(
            "inside", "Inside the optimizers", ("schedules", "kappa", "gamma3", "tau", "snr-clipping"), before="cost"
        ),
    )

    def figures(self) -> dict[str, Any]:
        from danalab_annexes.ladder.optimizer_state import clipping_figure, schedule_figure, tau_figure
        from danalab_annexes.ladder.sweeps import gamma3_figure, kappa_figure

        return {
            "schedules": (schedule_figure, "Recorded schedules of each optimizer's largest and longest tuned run."),
            "kappa": (
                kappa_figure,
                "Final loss against kappa, each value at its best learning rate (bars over seeds; hollow: one seed); "
                "small points are the other learning rates, a dotted level is the baseline's loss.",
            ),
            "gamma3": (
                gamma3_figure,
                "Final loss against gamma3, each value at its best learning rate (bars over seeds; hollow: one seed); "
                "small points are the other learning rates. Right, where there are several horizons: the best value of "
                "each, hollow where it is the outermost one tried, so that a better one may lie beyond.",
            ),
            "tau": (
                tau_figure,
                "Distribution of tau over the coordinates of each kind of matrix, from both tails of its order "
                "statistics.",
            ),
            "snr-clipping": (
                clipping_figure,
                "Share of coordinates whose damped momentum is held to clipsnr, by kind of matrix and layer; one run.",
            ),
        }


for _study in (Exponents(), Curvature(), Horizons(), Batches(), Registered(), Inside()):
    STUDIES.add(_study.name, _study)

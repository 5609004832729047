"""What a job of SLURM asks for; `danalab.train.slurm` writes and submits the scripts."""

import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from danalab.train.config.flags import Count, Natural, Section, setting

COMMAND = (sys.executable, "-m", "danalab")
"""What starts `danalab` on the cluster by default: this installation."""


@dataclass(frozen=True, kw_only=True)
class Resources(Section):
    """Resources of a job, as sbatch takes them."""

    title: ClassVar[str] = "SLURM"

    account: str | None = setting(None, "SLURM: account that is charged; default the cluster's.", main=True)
    partition: str | None = setting(None, "Partition; default the cluster's.")
    time: str = setting(
        "24:00:00",
        "SLURM: time limit of one job, as sbatch reads it; the run continues in the next one.",
        main=True,
    )
    nodes: Count = setting(1, "SLURM: machines of a run.", main=True)
    gpus: Natural = setting(
        1, "SLURM: GPUs on each machine, one rank each; 0: one process on the CPU.", main=True
    )
    cpus: Count = setting(8, "CPU cores for each rank.")
    mem: str = setting("32G", "Memory on each machine.")
    grace_seconds: Annotated[int, Ge(10)] = setting(
        300, "Warning before the time limit, in which the run is checkpointed [s]."
    )
    sbatch: tuple[str, ...] = setting(
        (), "More options of sbatch, without their hyphens: --sbatch constraint=a100 qos=low."
    )

    setup: tuple[str, ...] = setting((), 'Shell commands that run first: --setup "module load cuda".')
    at_once: Count | None = setting(
        None, "Largest number of runs of an array that run at the same time; default all."
    )

    @property
    def options(self) -> list[str]:
        """The additional options of sbatch, with their hyphens."""
        return ["--" + option.removeprefix("--") for option in self.sbatch]

    @property
    def ranks(self) -> int:
        """Processes of the job."""
        return self.nodes * max(1, self.gpus)

"""Flags of SLURM that `danalab slurm`, `danalab sweep` and `danalab ladder` share."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from danalab.errors import UserError
from danalab.train.config.fields import Count, Positive
from danalab.train.system.slurm import Resources

if TYPE_CHECKING:
    from danalab.ladder.runs.slurm_arrays import Cluster


@dataclass(frozen=True, kw_only=True)
class ResourceFlags(Resources):
    """Resources of a job."""

    title: ClassVar[str] = "SLURM"

    setup: tuple[str, ...] = ()
    """Shell commands that run first: --setup "module load cuda"."""
    at_once: Count | None = None
    """Largest number of runs of an array that run at the same time; default all."""

    def resources(self) -> Resources:
        """The part that every job script has."""
        return Resources(**{field.name: getattr(self, field.name) for field in fields(Resources)})


@dataclass(frozen=True, kw_only=True)
class ClusterFlags(ResourceFlags):
    """Resources of each run, where the executor is slurm."""

    wait: bool = False
    """Wait until no run is queued, then continue; otherwise start the same command again later."""
    poll_seconds: Positive = 60.0
    """Interval at which --wait asks the queue [s]."""

    def cluster(self) -> "Cluster":
        """As the sweep takes it."""
        from danalab.ladder.runs.slurm_arrays import Cluster

        return Cluster(
            resources=self.resources(),
            setup=self.setup,
            at_once=self.at_once,
            wait=self.wait,
            poll_seconds=self.poll_seconds,
        )


def require_used(flags: ClusterFlags, executor: str) -> None:
    """Refuse flags without effect."""
    if executor == "slurm":
        return
    for field in fields(ClusterFlags):
        if getattr(flags, field.name) != field.default:
            raise UserError(f"--{field.name.replace('_', '-')}: is for --executor slurm, not {executor}")

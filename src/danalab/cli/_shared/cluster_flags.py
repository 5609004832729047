"""What SLURM is asked for: flags that `danalab slurm`, `danalab sweep` and `danalab ladder` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.ladder.runs.slurm_arrays import Cluster
    from danalab.train.system.slurm import Resources


@dataclass(frozen=True, kw_only=True)
class ResourceFlags:
    """Resources of a job."""

    account: str | None = None
    """SLURM: account that is charged; default the cluster's."""
    partition: str | None = None
    """SLURM: partition; default the cluster's."""
    time: str = "24:00:00"
    """SLURM: time limit of one job, as sbatch reads it; the run goes on in the next one."""
    nodes: int = 1
    """SLURM: machines of a run."""
    gpus: int = 1
    """SLURM: GPUs on each machine, one rank each; 0: one process on the CPU."""
    cpus: int = 8
    """SLURM: CPU cores for each rank."""
    mem: str = "32G"
    """SLURM: memory on each machine."""
    grace_seconds: int = 300
    """SLURM: warning before the time limit, in which the run is checkpointed [s]."""
    sbatch: tuple[str, ...] = ()
    """SLURM: more options of sbatch, without their hyphens: --sbatch constraint=a100 qos=low."""
    setup: tuple[str, ...] = ()
    """SLURM: shell commands that come first: --setup "module load cuda"."""
    at_once: int | None = None
    """SLURM: runs of an array that may be under way at a time; default all."""

    def resources(self) -> Resources:
        """As the scripts take them.

        Raises:
            UserError: a value that sbatch could not mean.
        """
        from danalab.train.system.slurm import Resources

        if self.at_once is not None and self.at_once < 1:
            raise UserError(f"--at-once {self.at_once}: must be at least 1")
        given = {field.name: getattr(self, field.name) for field in fields(Resources)}
        return Resources(**{**given, "sbatch": tuple("--" + option.removeprefix("--") for option in self.sbatch)})


@dataclass(frozen=True, kw_only=True)
class ClusterFlags(ResourceFlags):
    """Resources of each run, where the executor is slurm."""

    wait: bool = False
    """SLURM: stay until no run is queued, and go on; otherwise the same command, started again later, goes on."""
    poll_seconds: float = 60.0
    """SLURM: how often --wait asks the queue [s]."""

    def cluster(self) -> Cluster:
        """As the sweep takes it."""
        from danalab.ladder.runs.slurm_arrays import Cluster

        if not self.poll_seconds > 0:
            raise UserError(f"--poll-seconds {self.poll_seconds:g}: must be positive")
        return Cluster(
            resources=self.resources(),
            setup=self.setup,
            at_once=self.at_once,
            wait=self.wait,
            poll_seconds=self.poll_seconds,
        )


def require_used(flags: ClusterFlags, executor: str) -> None:
    """Refuse what would have no effect.

    Raises:
        UserError: SLURM's flags beside another executor.
    """
    if executor == "slurm":
        return
    for field in fields(ClusterFlags):
        if getattr(flags, field.name) != field.default:
            raise UserError(f"--{field.name.replace('_', '-')}: is for --executor slurm, not {executor}")

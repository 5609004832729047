"""Flags that `danalab sweep` and `danalab ladder` share: hours and costs; SLURM's, as `danalab slurm` has them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from danalab.errors import UserError
from danalab.train.config.fields import Count, Positive
from danalab.train.system.slurm import Resources

if TYPE_CHECKING:
    from danalab.ladder.runs.estimate import Rate
    from danalab.ladder.runs.slurm_arrays import Cluster


@dataclass(frozen=True, kw_only=True)
class ResourceFlags(Resources):
    """Resources of a job."""

    title: ClassVar[str] = "SLURM"
    last: ClassVar[bool] = True

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


@dataclass(frozen=True, kw_only=True)
class CostFlags:
    """From FLOPs to hours and money."""

    last: ClassVar[bool] = True

    gpu: str | None = None
    """With --dry-run and --estimate: hours on this accelerator (h100, a100, ...); default of --dry-run by the runs that
    are finished, if any, of --estimate by a short measurement."""
    mfu: float = 0.4
    """With --gpu: share of its peak that training reaches."""
    dollars_per_hour: float | None = None
    """Price of a device, for a column of costs [$/hour]; default in plans a rough one of --gpu."""

    @property
    def price(self) -> float | None:
        """Of a device [$/hour]: as given, else a rough one of --gpu."""
        from danalab.scaling.hardware import named

        if self.dollars_per_hour is not None or self.gpu is None:
            return self.dollars_per_hour
        return named(self.gpu).dollars_per_hour

    def rate(self, folder: Path) -> "tuple[Rate | None, str]":
        """(FLOP/s of a device, source of the number)."""
        from danalab.ladder.rows import FILE, read_ladder
        from danalab.ladder.runs.estimate import accelerator_rate, measured_rate

        if self.gpu is not None:
            return accelerator_rate(self.gpu, self.mfu), f"{self.gpu.upper()} at {self.mfu:.0%} of its peak"
        rows = read_ladder(folder) if (folder / FILE).is_file() and (folder / FILE).stat().st_size else []
        rate = measured_rate(rows)
        if rate is None:
            return None, "no run is finished: use --gpu NAME for hours"
        return rate, f"as the finished runs in {folder}"


def require_plan_flags(flags: CostFlags, dry_run: bool) -> None:
    """Refuse flags without effect."""
    if flags.gpu is not None and not dry_run:
        raise UserError(f"--gpu {flags.gpu}: is for plans (--dry-run); finished runs have their own hours")
    if flags.mfu != CostFlags.mfu and flags.gpu is None:
        raise UserError(f"--mfu {flags.mfu:g}: is for --gpu NAME")
    if flags.dollars_per_hour is not None and not flags.dollars_per_hour > 0:
        raise UserError(f"--dollars-per-hour {flags.dollars_per_hour:g}: must be positive [$/hour]")

"""Flags that `danalab sweep` and `danalab ladder` share: hours and costs; SLURM's, as `danalab slurm` has them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from danalab.cli._shared.options import JsonFlags
from danalab.errors import UserError
from danalab.train.config.fields import Count, Positive, flag
from danalab.train.system.slurm import Resources

if TYPE_CHECKING:
    from danalab.experiments.estimate import Rate
    from danalab.experiments.runs import Runner


@dataclass(frozen=True, kw_only=True)
class ResourceFlags(Resources):
    """Resources of a job."""

    title: ClassVar[str] = "SLURM"
    last: ClassVar[float] = True

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

    last: ClassVar[float] = True

    wait: bool = False
    """Wait until no run is queued, then continue; otherwise start the same command again later."""
    poll_seconds: Positive = 60.0
    """Interval at which --wait asks the queue [s]."""


@dataclass(frozen=True, kw_only=True)
class CostFlags:
    """From FLOPs to hours and money."""

    last: ClassVar[float] = True

    gpu: str | None = None
    """With --dry-run: hours on this accelerator (h100, a100, ...); default by the finished runs."""
    mfu: float = 0.4
    """With --gpu: share of its peak that training reaches."""
    dollars_per_hour: float | None = None
    """Price of a device, for a column of costs [$/hour]; default in plans a rough one of --gpu."""

    @property
    def price(self) -> float | None:
        """Price of a device [$/hour]: as given, else a rough one of --gpu."""
        from danalab.hardware import named

        if self.dollars_per_hour is not None or self.gpu is None:
            return self.dollars_per_hour
        return named(self.gpu).dollars_per_hour

    def rate(self, folder: Path) -> "tuple[Rate | None, str]":
        """(FLOP/s of a device, source of the number)."""
        from danalab.experiments.estimate import accelerator_rate, measured_rate
        from danalab.experiments.rows import ladder_file, read_ladder

        if self.gpu is not None:
            return accelerator_rate(self.gpu, self.mfu), f"{self.gpu.upper()} at {self.mfu:.0%} of its peak"
        file = ladder_file(folder)
        rows = read_ladder(file) if file is not None and file.stat().st_size else []
        rate = measured_rate(rows)
        if rate is None:
            return None, "no run is finished: use --gpu NAME for hours"
        return rate, f"as the finished runs in {folder}"


@dataclass(frozen=True, kw_only=True)
class SweepFlags(CostFlags, ClusterFlags, JsonFlags):
    """Flags that sweeps and ladders share."""

    last: ClassVar[float] = 0.5

    executor: Literal["pool", "slurm"] = "pool"
    """pool: processes side by side; slurm: array jobs, one run per task."""
    jobs: int | None = None
    """Runs at a time of the pool; default one a core, or one a GPU."""
    dry_run: bool = False
    """Print the runs with their tokens, FLOPs and hours, and stop; slurm: also write the scripts, submit nothing."""
    collect: bool = False
    """Gather the rows of the folder and stop."""

    def runner(self, folder: Path) -> "Runner":
        """What makes the runs in a folder."""
        from danalab.experiments.runs import Runner
        from danalab.experiments.slurm import SlurmRunner

        if self.executor == "pool":
            return Runner(folder, self.jobs)
        names = ("setup", "at_once", "wait", "poll_seconds")
        return SlurmRunner(folder, self.resources(), **{name: getattr(self, name) for name in names})

    def require_effect(self, is_plan: bool) -> None:
        """Refuse flags without effect."""
        for field in fields(ClusterFlags):
            if self.executor != "slurm" and getattr(self, field.name) != field.default:
                raise UserError(f"{flag(field.name)}: is for --executor slurm, not {self.executor}")
        if self.gpu is not None and not is_plan:
            raise UserError(f"--gpu {self.gpu}: is for plans (--dry-run); finished runs have their own hours")
        if self.mfu != CostFlags.mfu and self.gpu is None:
            raise UserError(f"--mfu {self.mfu:g}: is for --gpu NAME")
        if self.dollars_per_hour is not None and not self.dollars_per_hour > 0:
            raise UserError(f"--dollars-per-hour is {self.dollars_per_hour:g}; it must be positive [$/hour]")
        if self.jobs is not None and (self.jobs < 1 or self.executor != "pool"):
            raise UserError(f"--jobs {self.jobs}: at least 1, and for --executor pool (slurm has --at-once)")

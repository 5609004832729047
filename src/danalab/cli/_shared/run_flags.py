"""Flags that `danalab sweep` and `danalab ladder` share: hours; SLURM's, as `danalab slurm` has them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from danalab.errors import UserError
from danalab.train.config.flags import Count, JsonFlags, flag, setting
from danalab.train.slurm import Resources

if TYPE_CHECKING:
    from danalab.experiments.estimate import Rate
    from danalab.experiments.runs import Runner


@dataclass(frozen=True, kw_only=True)
class SweepFlags(JsonFlags, Resources):
    """Flags that sweeps and ladders share; the resources are those of each run, where the executor is slurm."""

    title: ClassVar[str] = ""

    executor: Literal["pool", "slurm"] = setting(
        "pool", "pool: processes side by side; slurm: array jobs, one run per task."
    )
    jobs: Count | None = setting(None, "Runs at a time of the pool; default one a core, or one a GPU.")
    dry_run: bool = setting(
        False,
        "Print the runs with their tokens, FLOPs and hours, and stop; slurm: also write the scripts, submit nothing.",
    )
    collect: bool = setting(False, "Gather the rows of the folder and stop.")
    wait: bool = setting(
        False,
        "slurm: wait until no run is queued, then continue; otherwise start the same command again later.",
    )
    gpu: str | None = setting(
        None, "With --dry-run: hours on this accelerator (h100, a100, ...); default by the finished runs."
    )
    mfu: Annotated[float, Gt(0), Le(1)] = setting(0.4, "With --gpu: share of its peak that training reaches.")

    def check(self) -> None:
        super().check()
        for name in (*(field.name for field in fields(Resources)), "wait"):
            if self.executor != "slurm" and getattr(self, name) != getattr(SweepFlags, name):
                raise UserError(f"{flag(name)}: is for --executor slurm, not {self.executor}")

    def runner(self, folder: Path) -> "Runner":
        """What makes the runs of a folder."""
        from danalab.experiments.runs import Runner
        from danalab.experiments.slurm import SlurmRunner

        if self.executor == "slurm":
            return SlurmRunner(folder, self, wait=self.wait)
        return Runner(folder, self.jobs)

    def rate(self, folder: Path) -> "tuple[Rate | None, str]":
        """(FLOP/s of a device, source of the number)."""
        from danalab.experiments.estimate import accelerator_rate, measured_rate
        from danalab.experiments.rows import ladder_file, read_ladder

        if self.gpu is not None:
            return accelerator_rate(self.gpu, self.mfu), f"{self.gpu.upper()} at {self.mfu:.0%} of its peak"
        file = ladder_file(folder)
        rate = measured_rate(read_ladder(file)) if file is not None and file.stat().st_size else None
        if rate is None:
            return None, "no run is finished: use --gpu NAME for hours"
        return rate, f"as the finished runs in {folder}"

"""Runs as jobs of the library submitit (extra `cluster`): SLURM's, or processes of this machine where there is none.

A job is one process that starts `danalab train` on the GPUs of one machine. Before the time limit and at a preemption
submitit calls `checkpoint`: the run writes its checkpoint and the job is queued again, unless three in a row made no
step. This process waits for the jobs, and cancels them if it is stopped.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError, import_extra
from danalab.ladder.runs.executors import PolledExecutor, PolledFuture, Training
from danalab.ladder.runs.slurm_arrays import Cluster

UNLIMITED = 1_000_000  # time limits that a run may reach; runs that make no step end before


@dataclass
class Requeued(Training):
    """A run that submitit queues again."""

    process_id: int | None = field(default=None, compare=False)

    def checkpoint(self) -> Any:
        """What submitit queues again. Raises UserError: three jobs in a row made no step."""
        from submitit.helpers import DelayedSubmission

        if self.process_id is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.process_id, signal.SIGTERM)
                os.waitpid(self.process_id, 0)
        self.note_progress()
        return DelayedSubmission(replace(self, process_id=None))

    def _started(self, process: "subprocess.Popen[bytes]") -> None:
        self.process_id = process.pid


class SubmititExecutor(PolledExecutor):
    """Jobs of submitit; at SLURM what is submitted in one `poll` is one array, elsewhere `at_once` run at a time."""

    def __init__(self, folder: Path, cluster: Cluster):
        super().__init__()
        submitit = import_extra("submitit", "cluster", "--executor submitit")
        own = cluster.resources
        if own.nodes > 1:
            raise UserError(f"--nodes {own.nodes}: a job of submitit is on one machine; --executor slurm has several")
        logs = folder / "submitit"
        self._jobs: list[tuple[Any, PolledFuture]] = []
        self._gpus = own.gpus
        self._executor = submitit.AutoExecutor(logs, slurm_max_num_timeout=UNLIMITED, local_max_num_timeout=UNLIMITED)
        self._at_once = None if self._executor.cluster == "slurm" else cluster.at_once or 1
        more = {name: value or True for name, _, value in (each.lstrip("-").partition("=") for each in own.options)}
        self._executor.update_parameters(
            timeout_min=minutes(own.time), nodes=1, tasks_per_node=1, gpus_per_node=own.gpus,
            cpus_per_task=own.cpus * max(1, own.gpus), name=re.sub(r"\W+", "-", folder.resolve().name) or "sweep",
            slurm_mem=own.mem, slurm_account=own.account, slurm_partition=own.partition,
            slurm_signal_delay_s=own.grace_seconds, slurm_array_parallelism=cluster.at_once,
            slurm_setup=[*cluster.setup], slurm_additional_parameters={"requeue": True, **more},
        )  # fmt: skip

    def poll(self) -> None:
        """Submit what there is room for, and take the results that are there."""
        for job, future in [each for each in self._jobs if each[0].done()]:
            self._jobs.remove((job, future))
            error = job.exception()
            if error is None:
                future.set_result(job.result())
            else:
                future.set_exception(UserError(_why(str(error))))
        room = len(self.units) if self._at_once is None else self._at_once - len(self._jobs)
        new, self.units = self.units[: max(0, room)], self.units[max(0, room) :]
        if not new:
            return
        with self._executor.batch():
            jobs = [self._executor.submit(self._requeued(unit)) for unit, _ in new]
        self._jobs += [(job, future) for job, (_, future) in zip(jobs, new, strict=True)]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel what has not ended."""
        for job, _ in self._jobs:
            job.cancel()
        self._jobs.clear()

    def _requeued(self, unit: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(unit, Training):
            return unit
        settings = unit.job.settings
        if self._gpus > 1 and settings.get("nproc") is None:
            settings = {**settings, "nproc": self._gpus}
        return Requeued(replace(unit.job, folder=unit.job.folder.resolve(), settings=settings), resumes=True)


def _why(error: str) -> str:
    """The reason in a report of submitit: the last exception of the trace."""
    reasons = re.findall(r"^[\w.]*(?:Error|Exception|Exit): (.+)$", error, re.MULTILINE)
    return reasons[-1] if reasons else " ".join(error.split())[:300]


def minutes(limit: str) -> int:
    """A time limit as sbatch reads it: minutes, MM:SS, H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    days, dash, clock = limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        parts = [*parts, 0, 0][:3]
    elif len(parts) < 3:
        parts = [0, *parts, 0][:3]
    return int(days or 0) * 1440 + parts[0] * 60 + parts[1] + (parts[2] > 0)

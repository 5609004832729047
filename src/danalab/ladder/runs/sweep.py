"""Many runs: finished ones are skipped, interrupted ones resumed, failures listed at the end.

    FOLDER/sweep.json          the runs requested in all calls, so that a changed grid loses no rows
    FOLDER/runs/NAME/          an ordinary run folder each
    FOLDER/ladder.jsonl        one row per run, rewritten as runs end
    FOLDER/slurm/              scripts and logs, where SLURM makes the runs

There is no other state: a sweep that was killed ends with the same rows when it is started again.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.ladder.rows import FileName, RowsFile, portable_settings
from danalab.ladder.runs.estimate import plan_of
from danalab.ladder.runs.grid import Cell
from danalab.ladder.runs.jobs import DIVERGED, Failure, Job, is_taken
from danalab.ladder.runs.pool import run_jobs
from danalab.ladder.runs.slurm_arrays import Cluster, queue_state, submit_arrays, write_arrays
from danalab.train.config.train_config import TrainConfig

log = logging.getLogger(__name__)

RECORD = "sweep.json"
EXECUTORS = ("pool", "inline", "slurm")
"""pool: processes side by side. inline: one after the other in this process. slurm: array jobs, one run per task."""


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep."""

    folder: Path
    rows: list[dict[str, Any]]
    failures: list[Failure]
    queued: list[str] = field(default_factory=list)
    """Runs still at SLURM."""


def run_sweep(
    folder: Path,
    cells: Sequence[Cell],
    *,
    executor: str = "pool",
    jobs: int | None = None,
    cluster: Cluster | None = None,
    title: str = "sweep",
) -> SweepResult:
    """Train all runs that are not finished.

    Args:
        jobs: runs at a time of the pool; default one a core.
        cluster: what the arrays of the executor slurm ask for. Unless it waits, runs are submitted and the result
            says which are queued; call again to continue.
    Raises:
        UserError: a setting out of range, a run folder with other settings, an unknown executor; before anything runs.
    """
    if executor not in EXECUTORS:
        raise UserError(f"--executor {executor}: known are {', '.join(EXECUTORS)}")
    wanted, configs = _prepare(folder, cells)
    rows_file = RowsFile(folder)

    def gather(_: Job | None = None) -> list[dict[str, Any]]:
        return rows_file.update(_folders(folder), _record(folder).labels)

    queued: list[Job] = []
    if executor == "inline":
        failures = _inline(wanted, configs, gather)
    elif executor == "slurm":
        failures, queued = _on_cluster(folder, wanted, cluster or Cluster(), gather)
    else:
        failures = run_jobs(wanted, parallel=jobs, title=title, keep_going=True, on_end=gather)
    for failure in failures:
        log.warning("run %s failed: %s", failure.job.folder.name, failure.reason)
    return SweepResult(folder, gather(), failures, [job.folder.name for job in queued])


def write_scripts(folder: Path, cells: Sequence[Cell], cluster: Cluster) -> list[Path]:
    """Write the array scripts of unfinished runs; submits nothing."""
    wanted, _ = _prepare(folder, cells)
    open_ = queue_state(folder, wanted).open
    return write_arrays(folder, open_, cluster) if open_ else []


def collect(folder: Path) -> list[dict[str, Any]]:
    """Gather the rows of a sweep or ladder; runs nothing."""
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder}: no sweep there (no {RECORD}); --out names its folder")
    return RowsFile(folder).update(_folders(folder), _record(folder).labels)


def _prepare(folder: Path, cells: Sequence[Cell]) -> tuple[list[Job], dict[Path, TrainConfig]]:
    """Checked jobs and their configurations; also writes the folder's record."""
    wanted = [Job(folder / "runs" / cell.name, cell.settings) for cell in cells]
    configs = {job.folder: cell.config(job.folder) for cell, job in zip(cells, wanted, strict=True)}
    wanted = [replace(job, flops=_flops(configs[job.folder])) for job in wanted]
    clashes = {job.folder: differences for job in wanted if (differences := job.differences())}
    if clashes:
        # Otherwise the rows of the old runs would count as the new ones.
        first, differences = next(iter(clashes.items()))
        more = f" (and {len(clashes) - 1} more)" if len(clashes) > 1 else ""
        raise UserError(
            f"{first}{more} was made with other settings: {'; '.join(differences)}; take another --out, or delete its "
            "folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    asked = {cell.name: portable_settings(cell.settings) for cell in cells}
    labels = {cell.name: cell.label for cell in cells if cell.label is not None}
    before = _record(folder)
    write_json(folder / RECORD, {"runs": {**before.runs, **asked}, "labels": {**before.labels, **labels}})
    return wanted, configs


def _flops(config: TrainConfig) -> float | None:
    """Cost of a run, for the remaining time; None where its settings or data are invalid."""
    with contextlib.suppress(Exception):
        return float(plan_of(config).flops)
    return None


@dataclass(frozen=True)
class _Record:
    """The runs requested in a folder, by name."""

    runs: dict[FileName, dict[str, Any]] = field(default_factory=dict)
    """Their settings."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names of the optimizer in rows, where it is not that of `opt`."""


def _record(folder: Path) -> _Record:
    file = folder / RECORD
    return validated(_Record, read_json(file), file) if file.is_file() else _Record()


def _folders(folder: Path) -> list[Path]:
    return [folder / "runs" / name for name in _record(folder).runs]


def _on_cluster(
    folder: Path, jobs: Sequence[Job], cluster: Cluster, gather: Callable[[], Any]
) -> tuple[list[Failure], list[Job]]:
    """(failed runs, queued runs) after submitting the others; waits for all with `cluster.wait`."""
    state = queue_state(folder, jobs)
    if state.open:
        for answer in submit_arrays(write_arrays(folder, state.open, cluster)):
            log.info("%s", answer)
    if not cluster.wait:
        return state.failed, [*state.queued, *state.open]
    state = queue_state(folder, jobs)
    while state.queued:
        log.info("%d of %d runs are queued or under way", len(state.queued), len(jobs))
        time.sleep(cluster.poll_seconds)
        gather()
        state = queue_state(folder, jobs)
    left = [Failure(job, f"its job ended before the run did; see the logs in {folder / 'slurm'}") for job in state.open]
    return [*state.failed, *left], []


def _inline(
    jobs: Sequence[Job], configs: Mapping[Path, TrainConfig], gather: Callable[[Job | None], Any]
) -> list[Failure]:
    from danalab.train.job import run_training

    failures = []
    for job in jobs:
        while is_taken(job):  # by another process
            time.sleep(1)
        if job.is_finished():
            continue
        if job.has_diverged():
            failures.append(Failure(job, DIVERGED))
            continue
        try:
            outcome = run_training(configs[job.folder])
        except UserError as error:
            failures.append(Failure(job, str(error)))
            continue
        except Exception as error:  # one run's crash never stops the others
            log.exception("run %s crashed", job.folder.name)
            failures.append(Failure(job, f"{type(error).__name__}: {error}"))
            continue
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            failures.append(Failure(job, f"ended as {outcome.status} at step {outcome.summary.get('step')}"))
        gather(job)
    return failures

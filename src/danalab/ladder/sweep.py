"""Many runs, whatever happens: finished ones are skipped, broken ones resumed, failures listed at the end.

    FOLDER/sweep.json          what was asked for
    FOLDER/runs/NAME/          an ordinary run folder each
    FOLDER/ladder.jsonl        a row a run, rewritten as runs end

There is no other state: killed at any time and started again, it ends with the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import write_json
from danalab.ladder.grid import Cell
from danalab.ladder.pool import Failure, Job, run_jobs
from danalab.ladder.rows import write_rows
from danalab.train.config import TrainConfig

log = logging.getLogger(__name__)

EXECUTORS = ("pool", "inline")
"""pool: processes side by side. inline: one after the other in this process, without the start of one each."""


@dataclass(frozen=True)
class SweepResult:
    """What came of a sweep."""

    folder: Path
    rows: list[dict[str, Any]]
    failures: list[Failure]


def run_sweep(
    folder: Path, cells: Sequence[Cell], *, executor: str = "pool", jobs: int | None = None, title: str = "sweep"
) -> SweepResult:
    """Make all runs that are not finished yet.

    Args:
        jobs: runs at a time of the pool; default one a core.
    Raises:
        UserError: a setting that cannot be meant (before anything runs), or an unknown executor.
    """
    if executor not in EXECUTORS:
        raise UserError(f"--executor {executor}: known are {', '.join(EXECUTORS)}")
    wanted = [Job(folder / "runs" / cell.name, cell.settings) for cell in cells]
    configs = {job.folder: cell.config(job.folder) for cell, job in zip(cells, wanted, strict=True)}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sweep.json", {"runs": {cell.name: cell.settings for cell in cells}})

    def gather(_: Job | None = None) -> list[dict[str, Any]]:
        return write_rows(folder, [job.folder for job in wanted])

    if executor == "inline":
        failures = _inline(wanted, configs, gather)
    else:
        failures = run_jobs(wanted, parallel=jobs, title=title, keep_going=True, on_end=gather)
    for failure in failures:
        log.warning("run %s failed: %s", failure.job.folder.name, failure.reason)
    return SweepResult(folder, gather(), failures)


def _inline(
    jobs: Sequence[Job], configs: Mapping[Path, TrainConfig], gather: Callable[[Job | None], Any]
) -> list[Failure]:
    from danalab.train.job import run_training

    failures = []
    for job in jobs:
        if job.is_finished():
            continue
        try:
            outcome = run_training(configs[job.folder])
        except UserError as error:
            failures.append(Failure(job, str(error)))
            continue
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status != "finished":
            failures.append(Failure(job, f"ended as {outcome.status} at step {outcome.summary.get('step')}"))
        gather(job)
    return failures

"""Many runs: finished ones are skipped, interrupted ones resumed, failures listed at the end.

    FOLDER/sweep.json          the runs requested in all calls, so that a changed grid loses no rows
    FOLDER/runs/NAME/          an ordinary run folder each
    FOLDER/ladder.jsonl        one row per run, rewritten as runs end
    FOLDER/slurm/              scripts and logs, where SLURM makes the runs

There is no other state: a sweep that was killed ends with the same rows when it is started again. A finished run of a
packed ladder, which has a row and no folder, is not repeated either.
"""

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.plugins import load_address
from danalab.registry import Registry
from danalab.scaling.rate_search import next_rate, rounded
from danalab.sweep.estimate import plan_of
from danalab.sweep.executors import Cluster, InlineExecutor, Runs
from danalab.sweep.grid import Cell, portable_settings
from danalab.sweep.jobs import Failure, Job
from danalab.sweep.pool import PoolExecutor, sigterm_raises
from danalab.sweep.rows import FileName, RowsFile
from danalab.train.config.train_config import TrainConfig

log = logging.getLogger(__name__)

RECORD = "sweep.json"
EXECUTORS: Registry[Callable[..., Executor]] = Registry("executor")
"""Functions of the sweep's folder that return any executor of the shape of `concurrent.futures`; of `jobs`, the runs at
a time, and `cluster`, the resources of each, if they have parameters of these names."""
EXECUTORS.add("pool", lambda folder, jobs: PoolExecutor(jobs))
EXECUTORS.add("inline", lambda folder: InlineExecutor())


def open_executor(name: str, folder: Path, *, jobs: int | None = None, cluster: Cluster | None = None) -> Executor:
    """The executor of a name or an address, for the sweep in `folder`; UserError: none, or it cannot be opened.

    The pool takes `jobs` runs at a time (default one a core), slurm the `cluster` resources of each run.
    """
    cluster = cluster or Cluster()
    if name == "submitit":  # the library's name, for one release: arrays requeue runs as it did
        log.warning("--executor submitit is now: --executor slurm --wait, or pool where there is no sbatch")
        name, cluster, jobs = ("slurm" if which("sbatch") else "pool"), replace(cluster, wait=True), cluster.at_once
    factory = load_address(name) if ":" in name else EXECUTORS.get(name)
    given = {"jobs": jobs, "cluster": cluster}
    try:
        wanted = inspect.signature(factory).parameters
        executor = factory(folder, **{key: value for key, value in given.items() if key in wanted})
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--executor {name}: {type(error).__name__}: {error}") from error
    if not callable(getattr(executor, "submit", None)):
        raise UserError(f"--executor {name}: it returns a {type(executor).__name__}, which has no submit()")
    return executor


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep."""

    rows: list[dict[str, Any]]
    failures: list[Failure]
    queued: list[str]
    """Runs that have not ended: at SLURM, start the same command again for what depends on them."""


class Sweep:
    """The runs of a folder at an executor, as a context: started in any number at a time, gathered as they end.

    `rows` has one per run, as in ladder.jsonl. UserError: an unknown executor.
    """

    def __init__(
        self, folder: Path, executor: str = "pool", *, jobs: int | None = None, cluster: Cluster | None = None
    ):
        self._folder, self._runs = folder, Runs(open_executor(executor, folder, jobs=jobs, cluster=cluster))
        self._rows_file, self.rows = RowsFile(folder), []
        self.failures: dict[str, Failure] = {}
        """By name of the run."""
        self._places: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> "Sweep":
        self._signals = sigterm_raises()
        self._signals.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._runs.executor.shutdown(wait=True, cancel_futures=True)
        self._signals.__exit__(*error)

    def start(self, cells: Sequence[Cell], title: str, places: Sequence[tuple[int, ...]] = ()) -> None:
        """Train what is not finished. UserError, before anything runs: a setting out of range, or a run folder that was
        made with other settings.

        `places` of the cells among all rows, whenever they end; default in the order in which they are started. The
        first number is their priority.
        """
        self._places |= {cell.name: place for cell, place in zip(cells, places, strict=bool(places))}
        self._runs.start(_prepare(self._folder, cells, self._rows_file.packed, self._places), title)

    def ended(self) -> list[str]:
        """Names of runs that have ended since the last call; waits for one. Empty: nothing is left to wait for."""
        ended = self._runs.ended()
        for job, reason in ended:
            if reason is not None:
                self.failures[job.folder.name] = Failure(job, reason)
                log.warning("run %s failed: %s", job.folder.name, reason)
        self.rows = _updated(self._folder, self._rows_file)
        return [job.folder.name for job, _ in ended]

    def result(self) -> SweepResult:
        """What is known now."""
        queued = [job.folder.name for job in self._runs.open.values()]
        return SweepResult(self.rows, [*self.failures.values()], queued)


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
        executor: a name of `EXECUTORS`, or FILE.py:NAME.
        jobs: runs at a time of the pool; default one a core.
        cluster: resources of each run, for slurm. Unless it waits, runs are submitted and the result
            says which are queued; call again to continue.
    Raises:
        UserError: a setting out of range, a run folder with other settings, an unknown executor; before anything runs.
    """
    with Sweep(folder, executor, jobs=jobs, cluster=cluster) as sweep:
        sweep.start(cells, title)
        while sweep.ended():
            pass
        return sweep.result()


FIRST = (0.5, 1.0, 2.0)
"""Multiples of its learning rate that each run of a search begins with."""
_MOST_RATES = 9


def find_rates(folder: Path, cells: Sequence[Cell], **options: Any) -> SweepResult:
    """Train each run at half, once and twice its rate, and further by factors of 2 while the best is the outermost.

    Arguments as for `run_sweep`. A run that waits at SLURM, or failed, has no further ones.
    """
    wanted = {(cell.name, m): at_multiplier(cell, m) for cell in cells for m in FIRST}
    while True:
        result = run_sweep(folder, [*wanted.values()], **options)
        losses = {row["name"]: row["final_loss"] for row in result.rows if row["final_loss"] is not None}
        further = {}
        for cell in cells:
            tried = {m: losses.get(each.name, math.inf) for (name, m), each in wanted.items() if name == cell.name}
            more = next_rate(tried) if len(tried) < _MOST_RATES else None
            if more is not None and not result.queued:
                further[cell.name, more] = at_multiplier(cell, more)
        if not further:
            return result
        wanted |= further


def at_multiplier(cell: Cell, multiplier: float) -> Cell:
    """A run at a multiple of its learning rate."""
    key = "lr" if cell.settings.get("lr") is not None else "lr_multiplier"
    settings = {**cell.settings, key: rounded((cell.settings.get(key) or 1.0) * multiplier)}
    return Cell(f"{cell.name}-lrx{multiplier:g}", settings, cell.label)


def write_scripts(folder: Path, cells: Sequence[Cell], cluster: Cluster) -> list[Path]:
    """Write the scripts of SLURM for unfinished runs; submits nothing."""
    executor: Any = open_executor("slurm", folder, cluster=cluster)
    return executor.write_scripts(_prepare(folder, cells, RowsFile(folder).packed))


def collect(folder: Path) -> list[dict[str, Any]]:
    """Gather the rows of a sweep or ladder; runs nothing."""
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder}: no sweep there (no {RECORD}); --out names its folder")
    return _updated(folder, RowsFile(folder))


def _prepare(
    folder: Path,
    cells: Sequence[Cell],
    rows: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, tuple[int, ...]] = {},
) -> list[Job]:
    """Checked jobs; also writes the folder's record, in the order of `places`."""
    wanted = []
    for cell in cells:
        run = folder / "runs" / cell.name
        priority = places.get(cell.name, (0,))[0]
        wanted.append(Job(run, cell.settings, _flops(cell.config(run)), priority, rows.get(cell.name)))
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
    runs = sorted({**before.runs, **asked}.items(), key=lambda run: places.get(run[0], ()))
    write_json(folder / RECORD, {"runs": dict(runs), "labels": {**before.labels, **labels}})
    return wanted


def _flops(config: TrainConfig) -> float | None:
    """Cost of a run, for the remaining time; None where its settings or data are invalid."""
    with contextlib.suppress(Exception):
        return float(plan_of(config).flops)
    return None


@dataclass(frozen=True)
class _Record:
    """The runs requested in a folder, by name."""

    runs: dict[FileName, dict[str, Any]] = field(default_factory=dict)  # their settings
    labels: dict[str, str] = field(default_factory=dict)
    """Names of the optimizer in rows, where it is not that of `opt`."""


def _record(folder: Path) -> _Record:
    file = folder / RECORD
    return validated(_Record, read_json(file), file) if file.is_file() else _Record()


def _updated(folder: Path, file: RowsFile) -> list[dict[str, Any]]:
    record = _record(folder)
    return file.update([folder / "runs" / name for name in record.runs], record.labels)

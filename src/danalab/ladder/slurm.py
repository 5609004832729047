"""Runs on a cluster, as SLURM array jobs: one run per task, requeued until its last step; finished ones are left out.

    FOLDER/slurm/NAME-1.sh       the script of the first submission, NAME-2.sh of the second
    FOLDER/slurm/NAME-1.json     its runs, in the order of the array's tasks, and the answer of sbatch
    FOLDER/slurm/NAME-1-0.log    the output of its first task

Jobs are found in the queue by name, which stays the same when a job is requeued.
"""

import getpass
import hashlib
import itertools
import logging
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.sweep.executors import Cluster, PolledExecutor
from danalab.sweep.jobs import DIVERGED, Failure, Job
from danalab.sweep.run import EXECUTORS
from danalab.train.slurm import SlurmJob, submit

log = logging.getLogger(__name__)

LARGEST_ARRAY = 1000  # tasks of one array; SLURM's own bound (MaxArraySize) is 1001 by default
ATTEMPTS = 3  # submissions after which a run that is still not finished counts as failed


class SlurmExecutor(PolledExecutor):
    """Runs as tasks of arrays, which go on without this process; what is submitted in one `poll` is one array."""

    def __init__(self, folder: Path, cluster: Cluster):
        super().__init__()
        self._folder, self._cluster = folder, cluster
        self._submitted: set[Path] = set()
        self.waits, self.poll_seconds = cluster.wait, cluster.poll_seconds if cluster.wait else 0.0

    def poll(self) -> None:
        """Submit what is new, and ask the queue for the rest; UserError: one of them failed."""
        if not self.units:
            return
        state = queue_state(self._folder, [unit.job for unit, _ in self.units])
        lost = [job for job in state.open if job.folder in self._submitted]
        new = [job for job in state.open if job.folder not in self._submitted]
        if new:
            for answer in submit_arrays(write_arrays(self._folder, new, self._cluster)):
                log.info("%s", answer)
        going = {job.folder for job in (*new, *state.queued)}
        self._submitted |= going
        ended = f"its job ended before the run did; see the logs in {self._folder / 'slurm'}"
        reasons = {job.folder: ended for job in lost} | {each.job.folder: each.reason for each in state.failed}
        for unit, future in self.units:
            if unit.job.folder in reasons:
                future.set_exception(UserError(reasons[unit.job.folder]))
            elif unit.job.folder not in going:
                future.set_result(None)
        self.units = [(unit, future) for unit, future in self.units if not future.done()]

    def write_scripts(self, jobs: Sequence[Job]) -> list[Path]:
        """Write the scripts of what is neither finished nor queued; submits nothing."""
        open_ = queue_state(self._folder, jobs).open
        return write_arrays(self._folder, open_, self._cluster) if open_ else []


@dataclass(frozen=True)
class QueueState:
    """Unfinished runs, by what to do about them."""

    queued: list[Job]
    """In the queue, or running."""
    failed: list[Failure]
    """Diverged, or not finished after `ATTEMPTS` submissions."""
    open: list[Job]
    """To be submitted."""


@dataclass(frozen=True)
class _Array:
    """The record of an array, NAME-1.json."""

    runs: list[str]  # in the order of its tasks
    sbatch: str | None  # the answer of sbatch; None: not submitted here


def queue_state(folder: Path, jobs: Sequence[Job]) -> QueueState:
    """The state of each unfinished run; UserError: there are submissions, and the queue cannot be queried."""
    attempts: Counter[str] = Counter()
    logs: dict[str, Path] = {}
    for name, cells in _arrays(folder, submitted=True).items():
        attempts.update(cells)
        files = [f"{name}-{i}.log" for i in range(len(cells))] if len(cells) > 1 else [f"{name}.log"]
        logs |= {cell: folder / "slurm" / file for cell, file in zip(cells, files, strict=True)}
    queued = _queued(folder)
    state = QueueState([], [], [])
    for job in jobs:
        name = job.folder.name
        if job.is_finished():
            continue
        if job.has_diverged():
            state.failed.append(Failure(job, DIVERGED))
        elif name in queued:
            state.queued.append(job)
        elif attempts[name] >= ATTEMPTS:
            words = f"not finished after {ATTEMPTS} jobs: {_last_words(logs[name])}; delete {folder / 'slurm'} to go on"
            state.failed.append(Failure(job, words))
        else:
            state.open.append(job)
    return state


def write_arrays(folder: Path, jobs: Sequence[Job], cluster: Cluster) -> list[Path]:
    """Write the scripts of runs, several where one array would be too large."""
    place = folder / "slurm"
    place.mkdir(parents=True, exist_ok=True)
    scripts = []
    for first in range(0, len(jobs), LARGEST_ARRAY):
        part = jobs[first : first + LARGEST_ARRAY]
        name = _next_name(folder)
        tasks = [_flags(job, cluster.resources.ranks) for job in part]
        how = (cluster.resources, place, cluster.setup, cluster.at_once, cluster.command)
        array = SlurmJob(name, tasks, *how)
        scripts.append(array.write())
        write_json(place / f"{name}.json", asdict(_Array([job.folder.name for job in part], None)))
    return scripts


def submit_arrays(scripts: Sequence[Path]) -> list[str]:
    """Submit scripts of `write_arrays`; returns the answers of sbatch.

    UserError: there is no sbatch here, or it refused; the rest does not count as submitted.
    """
    answers = []
    for script in scripts:
        answers.append(submit(script))
        record = script.with_suffix(".json")
        write_json(record, asdict(replace(validated(_Array, read_json(record), record), sbatch=answers[-1])))
    return answers


def _flags(job: Job, ranks: int) -> list[str]:
    if job.settings.get("nproc") not in (None, 1):
        raise UserError(
            f"run {job.folder.name}: --nproc {job.settings['nproc']}: under SLURM the ranks are started by srun; "
            "give --gpus and --nodes"
        )
    own: dict[str, Any] = {key: value for key, value in job.settings.items() if key != "nproc"}
    if ranks > 1 and own.get("distributed_backend") is None:
        own["distributed_backend"] = "ddp"
    return Job(job.folder.resolve(), own).flags()


def _next_name(folder: Path) -> str:
    """Name of the folder's next jobs: readable and unique to the folder."""
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
    readable = re.sub(r"[^A-Za-z0-9._]+", "", folder.resolve().name).lstrip("._") or "sweep"
    names = (f"{readable}-{digest}-{number}" for number in itertools.count(1))
    return next(name for name in names if not (folder / "slurm" / f"{name}.sh").exists())


def _arrays(folder: Path, *, submitted: bool) -> dict[str, list[str]]:
    """Name of each array -> its runs; with `submitted` only those submitted here."""
    files = sorted((folder / "slurm").glob("*.json"))
    records = {file.stem: validated(_Array, read_json(file), file) for file in files}
    return {name: record.runs for name, record in records.items() if record.sbatch or not submitted}


def _queued(folder: Path) -> set[str]:
    arrays = _arrays(folder, submitted=False)
    if not arrays:
        return set()
    command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--name={','.join(arrays)}"]
    try:
        done = subprocess.run([*command, "--format=%j %K"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        if not _arrays(folder, submitted=True):
            return set()
        raise UserError(f"{folder}: runs were submitted, but here is no squeue: continue on the cluster") from error
    if done.returncode:
        raise UserError(f"{folder}: squeue failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    queued = set()
    for line in done.stdout.splitlines():
        name, _, task = line.strip().partition(" ")
        runs = arrays.get(name, [])
        index = int(task) if task.strip().isdigit() else 0  # a job of one run is no array and prints N/A
        queued.update(runs[index : index + 1])
    return queued


def _last_words(log: Path) -> str:
    words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    errors = [line for line in words if line.startswith("danalab: error")]
    return f"{(errors or words)[-1]} ({log})" if words else f"no output in {log}"


EXECUTORS.add("slurm", SlurmExecutor)

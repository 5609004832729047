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
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.experiments.cells import Cell
from danalab.experiments.runs import Queued, Runner, last_words, train_flags
from danalab.files import read_json, validated, write_json
from danalab.train.slurm import COMMAND, Resources, SlurmJob, submit

log = logging.getLogger(__name__)

LARGEST_ARRAY = 1000  # tasks of one array; SLURM's own bound (MaxArraySize) is 1001 by default
ATTEMPTS = 3  # submissions after which a run that is still not finished counts as failed


@dataclass(frozen=True)
class _Array:
    """The record of an array, NAME-1.json."""

    runs: list[str]  # in the order of its tasks
    sbatch: str | None  # the answer of sbatch; None: not submitted here


class SlurmRunner(Runner):
    """The runs of a folder as tasks of arrays; without `wait`, `train` raises `Queued` while runs have not ended."""

    def __init__(
        self,
        folder: Path,
        resources: Resources,
        *,
        wait: bool = False,
        poll_seconds: float = 60.0,
        command: Sequence[str] = COMMAND,
    ):
        """`poll_seconds`: interval of looks at the queue [s]; `command` starts `danalab` there."""
        super().__init__(folder, jobs=1)
        self._resources, self._command = resources, command
        self._wait, self._poll_seconds = wait, poll_seconds

    def write_scripts(self, cells: Sequence[Cell]) -> list[Path]:
        """Write the scripts of what is neither finished nor queued; submits nothing."""
        self.check(cells)
        self._note(cells)
        wanted = self._to_submit([cell for cell in cells if self._state(cell)[0] in ("new", "running")])
        return self._write_arrays(wanted) if wanted else []

    def _make(self, cells: Sequence[Cell], title: str) -> None:
        left = list(cells)
        while left:
            with self._lock:
                if wanted := self._to_submit(left):
                    for script in self._write_arrays(wanted):
                        answer, record = submit(script), script.with_suffix(".json")
                        array = validated(_Array, read_json(record), record)
                        write_json(record, asdict(replace(array, sbatch=answer)))
                        log.info("%s", answer)
            names = {cell.name for cell in left if cell.name not in self.failures}
            if names and not self._wait:
                self.queued |= names
                raise Queued
            if names:
                time.sleep(self._poll_seconds)
            left = [
                cell for cell in left if cell.name in names and self._state(cell)[0] in ("new", "running")
            ]

    def _to_submit(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those that are not queued. One that is not finished after `ATTEMPTS` submissions has failed."""
        attempts: Counter[str] = Counter()
        logs: dict[str, Path] = {}
        for name, runs in self._arrays(submitted=True).items():
            attempts.update(runs)
            files = [f"{name}-{i}.log" for i in range(len(runs))] if len(runs) > 1 else [f"{name}.log"]
            logs |= {run: self.folder / "slurm" / file for run, file in zip(runs, files, strict=True)}
        queued = self._in_queue()
        wanted = []
        for cell in cells:
            if cell.name in queued:
                continue
            if attempts[cell.name] >= ATTEMPTS:
                self.failures[cell.name] = (
                    f"not finished after {ATTEMPTS} jobs: {last_words(logs[cell.name])} "
                    f"({logs[cell.name]}); delete "
                    f"{self.folder / 'slurm'} to go on"
                )
            else:
                wanted.append(cell)
        return wanted

    def _write_arrays(self, cells: Sequence[Cell]) -> list[Path]:
        """Write the scripts of runs, several where one array would be too large."""
        place = self.folder / "slurm"
        place.mkdir(parents=True, exist_ok=True)
        # names that are readable and unique to the folder
        digest = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:6]
        readable = re.sub(r"[^A-Za-z0-9._]+", "", self.folder.resolve().name).lstrip("._") or "sweep"
        scripts = []
        for first in range(0, len(cells), LARGEST_ARRAY):
            part = cells[first : first + LARGEST_ARRAY]
            names = (f"{readable}-{digest}-{number}" for number in itertools.count(1))
            name = next(name for name in names if not (place / f"{name}.sh").exists())
            tasks = [_flags(self.folder / "runs" / cell.name, cell, self._resources.ranks) for cell in part]
            array = SlurmJob(name, tasks, self._resources, place, self._command)
            scripts.append(array.write())
            write_json(place / f"{name}.json", asdict(_Array([cell.name for cell in part], None)))
        return scripts

    def _arrays(self, *, submitted: bool) -> dict[str, list[str]]:
        """Name of each array -> its runs; with `submitted` only those submitted here."""
        files = sorted((self.folder / "slurm").glob("*.json"))
        records = {file.stem: validated(_Array, read_json(file), file) for file in files}
        return {name: record.runs for name, record in records.items() if record.sbatch or not submitted}

    def _in_queue(self) -> set[str]:
        arrays = self._arrays(submitted=False)
        if not arrays:
            return set()
        command = [
            "squeue",
            "--noheader",
            "--array",
            f"--user={getpass.getuser()}",
            f"--name={','.join(arrays)}",
        ]
        try:
            done = subprocess.run([*command, "--format=%j %K"], capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            if not self._arrays(submitted=True):
                return set()
            raise UserError(
                f"{self.folder}: runs were submitted, but here is no squeue: continue on the cluster"
            ) from error
        if done.returncode:
            reason = done.stderr.strip() or f"exit code {done.returncode}"
            raise UserError(f"{self.folder}: squeue failed: {reason}")
        queued = set()
        for line in done.stdout.splitlines():
            name, _, task = line.strip().partition(" ")
            runs = arrays.get(name, [])
            index = int(task) if task.strip().isdigit() else 0  # a job of one run is no array and prints N/A
            queued.update(runs[index : index + 1])
        return queued


def _flags(folder: Path, cell: Cell, ranks: int) -> list[str]:
    if cell.settings.get("nproc") not in (None, 1):
        raise UserError(
            f"run {cell.name}: --nproc {cell.settings['nproc']}: under SLURM the ranks are started by srun; "
            "give --gpus and --nodes"
        )
    own: dict[str, Any] = {key: value for key, value in cell.settings.items() if key != "nproc"}
    if ranks > 1 and own.get("distributed_backend") is None:
        own["distributed_backend"] = "ddp"
    return train_flags(folder.resolve(), own)

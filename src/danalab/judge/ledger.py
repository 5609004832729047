"""The ledger: a folder in which runs and verdicts are kept, shared by any number of judgements at a time.

    judge.jsonl    a row per verdict: question, code digests, settings, seeds, result, cost, machine; append-only
    runs.jsonl     a row per run; a run that is here is not made again, so a killed judgement goes on where it was
    all-tracks.jsonl    a row per answer of `judge --all-tracks`

A row is one line, written under a lock. A line that a kill cut short is skipped by readers, ended by the next writer.
"""

import fcntl
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from danalab import __version__
from danalab.errors import UserError
from danalab.files import finite, read_json, sound_objects
from danalab.judge.workers import PlannedRun, RunResult

STORED = Path(__file__).with_name("baselines.json")
"""Runs of AdamW on every track, by processor type; made by bench/judge_baselines.py."""


class Ledger:
    """The rows of a folder, read anew at each call: other judgements may add some."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._runs: dict[str, RunResult] = {}
        self._read = 0  # bytes of runs.jsonl that were read

    def run(self, trial: PlannedRun) -> RunResult | None:
        """The result of a run that was made before."""
        if trial.key not in self._runs:
            self._read_runs()
        return self._runs.get(trial.key)

    def add_run(self, trial: PlannedRun, result: RunResult) -> None:
        self._runs.setdefault(trial.key, result)
        self.add_row("runs.jsonl", {"run": trial.key, "contestant": trial.contestant.label, **asdict(result)})

    def verdicts(self) -> list[dict[str, Any]]:
        """All verdicts, oldest first."""
        return list(sound_objects(_lines(self.folder / "judge.jsonl")[0]))

    def add_answer(self, name: str, row: dict[str, Any]) -> None:
        """Add an answer to one of the ledger's files, with the version and the machine that gave it."""
        from danalab.train.system.device import machine

        self.add_row(name, {**row, "danalab": __version__, "machine": machine("cpu")})

    def _read_runs(self) -> None:
        """Read the lines that came since the last time; a run that failed from outside counts as not made."""
        whole, self._read = _lines(self.folder / "runs.jsonl", self._read)
        for row in sound_objects(whole):
            if row.get("run") not in self._runs and not row.get("from_outside"):
                steps, losses = tuple(row["steps"]), tuple(row["losses"])
                self._runs[row["run"]] = RunResult(row["loss"], steps, losses, row["seconds"], row["failure"])

    def add_row(self, name: str, row: dict[str, Any]) -> None:
        """Add a row to one of the ledger's files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, 2)
            file.seek(max(0, end - 1))
            cut = b"" if end == 0 or file.read(1) == b"\n" else b"\n"  # the line of a killed writer
            file.write(cut + json.dumps(finite(row)).encode() + b"\n")
            file.flush()


def processor() -> str:
    """The processor's name and instructions; a first run says whether its last bits are those of the stored runs."""
    from danalab.train.system.device import machine

    facts = machine("cpu")
    name, torch_version = facts["cpu"].partition(", family")[0], facts["torch"].partition("+")[0]
    return f"{name}, {facts['torch_capability']}, torch {torch_version}"


def stored_runs(track: str, steps: int) -> dict[tuple[str, int], RunResult]:
    """(rate, seed) -> stored run of AdamW on a processor like this one; none where the track's runs are others."""
    here = read_json(STORED).get(processor(), {"tracks": {}})["tracks"].get(track)
    if here is None or here["steps"] != steps:
        return {}
    runs = {}
    for run in here["runs"]:
        losses = tuple(np.array(run["losses"], np.float32).tolist())  # written with the digits that a float32 needs
        runs[f"{run['lr']:.6g}", run["seed"]] = RunResult(losses[-1], tuple(here["at"]), losses, here["seconds"])
    return runs


def _lines(path: Path, first: int = 0) -> tuple[bytes, int]:
    """(the whole lines of a file from a position on, the position after them)."""
    if not path.exists() or path.stat().st_size == first:
        return b"", first
    try:
        with open(path, "rb") as file:
            file.seek(first)
            content = file.read()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    end = content.rfind(b"\n") + 1
    return content[:end], first + end

"""The ledger: a folder in which runs and verdicts are kept, shared by any number of judgements at a time.

    judge.jsonl    a row per verdict: question, code digests, settings, seeds, result, cost, machine; append-only
    runs.jsonl     a row per run; a run that is here is not made again, so a killed judgement goes on where it was

A row is one line, written under a lock. A line that a kill cut short is skipped by readers, ended by the next writer.
"""

import fcntl
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.judge.workers import PlannedRun, RunResult


class Ledger:
    """The rows of a folder, read anew at each call: other judgements may add some."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._runs: dict[str, RunResult] = {}

    def run(self, trial: PlannedRun) -> RunResult | None:
        """The result of a run that was made before."""
        if trial.key not in self._runs:
            self._read_runs()
        return self._runs.get(trial.key)

    def add_run(self, trial: PlannedRun, result: RunResult) -> None:
        self._runs.setdefault(trial.key, result)
        self._append("runs.jsonl", {"run": trial.key, "contestant": trial.contestant.label, **asdict(result)})

    def verdicts(self) -> list[dict[str, Any]]:
        """All verdicts, oldest first."""
        return list(_rows(self.folder / "judge.jsonl"))

    def add_verdict(self, row: dict[str, Any]) -> None:
        self._append("judge.jsonl", row)

    def _read_runs(self) -> None:
        for row in _rows(self.folder / "runs.jsonl"):
            if row.get("run") not in self._runs:
                steps, losses = tuple(row["steps"]), tuple(row["losses"])
                self._runs[row["run"]] = RunResult(row["loss"], steps, losses, row["seconds"], row["failure"])

    def _append(self, name: str, row: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, 2)
            file.seek(max(0, end - 1))
            cut = b"" if end == 0 or file.read(1) == b"\n" else b"\n"  # the line of a killed writer
            file.write(cut + json.dumps(_finite(row)).encode() + b"\n")
            file.flush()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut short by a kill
        if isinstance(row, dict):
            yield row


def _finite(value: Any) -> Any:
    """With None in place of numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

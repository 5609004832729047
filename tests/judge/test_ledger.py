"""The ledger of judgements: rows of several writers, and what a reader reads of them."""

from __future__ import annotations

import json
import multiprocessing

from danalab.judge.ledger import Ledger
from danalab.judge.workers import PlannedRun, RunResult, read_contestant


def test_only_what_is_new_of_the_runs_is_read(tmp_path):
    first, second = Ledger(tmp_path), Ledger(tmp_path)
    trials = [PlannedRun("char", 1, read_contestant("adamw"), 0.1, seed) for seed in range(3)]
    for trial in trials[:2]:
        first.add_run(trial, RunResult(1.0))
    assert second.run(trials[1]) is not None
    size = (tmp_path / "runs.jsonl").stat().st_size
    first.add_run(trials[2], RunResult(2.0))
    content = (tmp_path / "runs.jsonl").read_bytes()
    (tmp_path / "runs.jsonl").write_bytes(b"?" * size + content[size:])  # what was read is not looked at again
    assert second.run(trials[2]) == RunResult(2.0)


def append_rows(folder, name):
    ledger = Ledger(folder)
    trial = PlannedRun("char", 1, read_contestant("adamw"), 0.1, 0)
    for i in range(200):
        ledger.add_run(PlannedRun("char", i, trial.contestant, 0.1, name), RunResult(1.0, (0, 1), (2.0, 1.0)))


def test_two_judgements_may_write_one_ledger(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_rows, args=(tmp_path, name)) for name in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len({row["run"] for row in rows}) == len(rows) == 400

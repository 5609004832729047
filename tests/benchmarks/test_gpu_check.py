"""The check of a GPU, at tiny sizes on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gpu_check


@pytest.mark.parametrize(
    "section", ["rules", "matrices", "resume", pytest.param("step", marks=pytest.mark.slow)]
)
def test_a_section_holds_on_a_cpu(section):
    rows = list(gpu_check.SECTIONS[section](gpu_check.Bench(torch.device("cpu"), dry=True)))
    assert rows
    assert all(row.get("ok", True) for row in rows)


def test_characters_are_learned_by_both_optimizers(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 100)
    rows: list[dict] = []
    gpu_check.shakespeare(gpu_check.Bench(torch.device("cpu"), dry=True), text, float("inf"), rows.append)
    for name in ("adamw", "adana"):
        losses = [row["val_loss"] for row in rows if row["task"] == name]
        assert losses[-1] < losses[0]


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--out", str(tmp_path)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    assert "torch sees no GPU" in capsys.readouterr().err


def test_rows_are_written_as_sections_end_and_one_that_fails_costs_no_other(monkeypatch, capsys, tmp_path):
    def broken(bench):
        yield {"task": "first", "ok": True}
        raise RuntimeError("lost")

    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--dry-run", "--out", str(tmp_path)])
    monkeypatch.setattr(
        gpu_check, "SECTIONS", {"broken": broken, "fine": lambda bench: [{"task": "t", "ok": True}]}
    )
    assert gpu_check.main() == 1
    rows = [json.loads(line) for line in (tmp_path / "check.jsonl").read_text().splitlines()]
    assert [row.get("task", row.get("error")) for row in rows[1:]] == ["first", "RuntimeError: lost", "t"]
    assert "broken does not hold" in capsys.readouterr().err

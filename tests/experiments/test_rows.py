"""ladder.jsonl: rows are read as they are written, from anywhere, and what is no row is refused by file and line."""

import json
from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.experiments.cells import expand
from danalab.experiments.rows import RowsFile, metrics_of, pack, read_ladder, row_line
from experiments.conftest import run_all
from experiments.planted import plant

RESULTS = sorted((Path(__file__).parents[2] / "bench" / "results").glob("*/ladder.jsonl.gz"))


def test_a_packed_ladder_is_read_as_the_folder_was(tmp_path):
    rows = read_ladder(plant(tmp_path / "ladder"))
    file = pack(rows, tmp_path / "packed")
    assert file.read_bytes() == pack(rows, tmp_path / "again").read_bytes()
    again = read_ladder(tmp_path / "packed")
    left_out = ("run", "curve", "points")
    for row, other in zip(rows, again, strict=True):
        assert {k: v for k, v in row.items() if k not in left_out} == {
            k: v for k, v in other.items() if k not in left_out
        }
        assert metrics_of(row) == metrics_of(other)
    with pytest.raises(UserError, match="is not packed"):
        pack(rows, tmp_path / "ladder")


def test_a_ladder_can_be_moved(tmp_path):
    plant(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert metrics_of(read_ladder(tmp_path / "there")[0])


def test_a_damaged_run_keeps_its_row(trainer, tmp_path):
    rows, _ = run_all(expand({"opt": ["adamw", "adana"]}, {"heads": 3}), tmp_path)
    (tmp_path / "runs" / "adamw" / "config.json").write_text("{")
    runs = sorted((tmp_path / "runs").iterdir())
    kept = RowsFile(tmp_path).update(runs, {})
    assert [(row["name"], row["final_loss"]) for row in kept] == [(r["name"], r["final_loss"]) for r in rows]


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.parent.name)
def test_stored_ladders_are_read(file):
    rows = read_ladder(file)
    assert all(row["final_loss"] and row["points"] for row in rows)
    assert all(row["batch"] for row in rows)


ROW = {"name": "a", "opt": "adamw", "params": 10, "non_emb_params": 8, "curve": "a.jsonl", "lr": 0.1, "tokens": 5,
       "flops": 2.0, "final_loss": 3.0}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../a"}, "name: it must be the name of a file"),
        ({"params": 0}, "params"),
        ({"opt": ""}, "opt"),
        ({"lr": None}, "lr, tokens and flops must be positive"),
        ({"final_loss": -1.0}, "final_loss"),
        ({"settings": 3}, "settings"),
    ],
)
def test_what_is_no_row_is_refused_by_file_and_line(tmp_path, change, message):
    (tmp_path / "ladder.jsonl").write_text(row_line(ROW) + row_line({**ROW, "name": "b", **change}))
    with pytest.raises(UserError, match=rf"ladder\.jsonl:2: .*{message}"):
        read_ladder(tmp_path)
    (tmp_path / "ladder.jsonl").write_text(json.dumps(ROW) + "\n{")
    with pytest.raises(UserError, match=r"ladder\.jsonl:2"):
        read_ladder(tmp_path)

"""Rows that others wrote: one line for what is wrong, nothing written outside, no run counted twice."""

import json
import math
import re
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.sweep.rows import optimizer_settings_of, written_rows
from ladder.planted import plant


def change(folder, **fields):
    """Overwrite fields of the first row."""
    file = folder / "ladder.jsonl"
    first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(first), **fields}), *rest]))
    return folder


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"params": 1e300}, "params is 1e"),
        ({"params": -5}, "params is -5"),
        ({"params": True}, "params is True; it must be a number"),
        ({"final_loss": -1.0}, "final_loss is -1.0; it must be a positive number"),
        ({"final_loss": "3"}, "final_loss is '3'; it must be a number"),
        ({"lr": math.inf}, "lr is inf"),
        ({"opt": 3}, "opt is 3"),
        ({"seed": "first"}, "seed is 'first'"),
        ({"settings": "none"}, "settings is 'none'"),
        ({"settings": {"kappa": "high"}}, "where kappa is 'high'; it must be a number"),
        ({"settings": {"iterations": {}}}, "where iterations is {}; it must be a number"),
        ({"settings": {"global_batch": "8"}}, "where global_batch is '8'; it must be a number"),
        ({"batch": 0}, "batch is 0"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"device": ["h100"]}, "device is"),
        ({"tokens": [1]}, "tokens is"),
        ({"curve": None}, "curve is None"),
        ({"name": "../../../x"}, "it must be the name of a file without a folder"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": ".."}, "name is '..'"),
        ({"name": "a\nb"}, "name is"),
    ],
)
def test_a_row_out_of_range_is_refused_with_its_line_and_field(tmp_path, fields, what, capsys):
    change(plant(tmp_path), **fields)
    with pytest.raises(UserError, match=r"ladder\.jsonl:1: not a row of a ladder: .*" + re.escape(what)):
        read_ladder(tmp_path)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out"), "--pack"]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "batch"),
    [
        ({"settings": {"global_batch": 32, "batch_size": 8}}, 32),
        ({"settings": {"batch_size": 8, "acc_steps": 2}, "world_size": 2}, 32),
        ({"settings": {}}, None),
        ({"settings": {"global_batch": math.inf}}, None),
        ({"batch": 64, "settings": {"global_batch": 32}}, 64),
    ],
)
def test_older_rows_have_their_batch_in_the_settings(tmp_path, fields, batch):
    assert read_ladder(change(plant(tmp_path), **fields))[0]["batch"] == batch


def test_copies_of_a_row_count_once_and_two_rows_of_one_run_are_refused(tmp_path):
    file = plant(tmp_path) / "ladder.jsonl"
    once = analyse(read_ladder(tmp_path), n_bootstrap=5)
    file.write_text(2 * file.read_text())
    twice = analyse(read_ladder(tmp_path), n_bootstrap=5)
    assert twice.loss_laws["adamw"].intervals == once.loss_laws["adamw"].intervals
    assert [len(each.runs) for each in twice.tuned] == [3] * 8
    other = {**json.loads(file.read_text().splitlines()[0]), "final_loss": 3.0}
    file.write_text(file.read_text() + json.dumps(other) + "\n")
    with pytest.raises(UserError, match=r"the run adamw-10000-lrx0\.5-s0 is in line 1 too, with other values"):
        read_ladder(tmp_path)


def test_a_run_under_two_names_counts_once(tmp_path, caplog):
    plant(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "ladder.jsonl").read_text().splitlines()]
    again = [{**row, "name": f"{row['name']}-again"} for row in rows]
    (tmp_path / "ladder.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + again))
    assert len(read_ladder(tmp_path)) == len(rows)
    assert f"{len(rows)} rows are copies of others and count once" in caplog.text


def test_a_report_does_not_follow_a_link_of_the_ladder(tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    ladder = plant(tmp_path / "ladder", seeds=1)
    (ladder / "report").symlink_to(outside)
    assert main(["report", str(ladder)]) == 2
    assert "a symbolic link; give the folder of the report by --out" in capsys.readouterr().err
    assert not any(outside.iterdir())


def test_sizes_to_predict_are_finite(tmp_path, capsys):
    assert main(["report", "--tables-only", str(plant(tmp_path, seeds=1)), "--predict", "1e400"]) == 2
    assert "--predict 1e400: must be finite" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_of_odd_types_are_never_a_traceback(tmp_path, capsys):
    odd = {"d_model": True, "n_layers": 1.5, "n_heads": 2, "head_dim": 2, "mlp_dim": 3, "vocab_size": 5, "seq_len": 4}
    odd |= {"arch": 3, "data": [1], "scheduler": 2, "opt": {}}
    change(plant(tmp_path), settings=odd)
    for verb in (
        ["report", "--out", str(tmp_path / "out")],
        ["report", "--tables-only"],
        ["report", "--tables-only", "--convention", "6nd"],
    ):
        assert main([verb[0], str(tmp_path), "--bootstrap", "0", *verb[1:]]) in (0, 2)


@pytest.mark.parametrize(
    ("settings", "betas"),
    [
        ({}, [0.9, 0.999]),
        ({"beta2": 0.95}, [0.9, 0.95]),
        ({"beta1": 0.8, "beta2": None}, [0.8, 0.999]),
        ({"optimizer_settings": {"betas": [0.9, 0.99]}}, [0.9, 0.99]),
        ({"opt": "adamw", "optimizer_settings": None}, [0.9, 0.999]),
    ],
)
def test_a_row_has_all_settings_of_its_optimizer(settings, betas):
    known = optimizer_settings_of("adamw", {"weight_decay": 0.1, "d_model": 8, **settings})
    assert known is not None
    assert (known["betas"], known["eps"], known["weight_decay"]) == (betas, 1e-8, 0.1)
    assert "d_model" not in known
    assert optimizer_settings_of("mine.py:Mine", settings) is None or settings.get("opt")


def test_every_stored_row_of_the_baseline_has_its_betas():
    for file in (Path(__file__).parents[2] / "bench" / "results").glob("*/ladder.jsonl.gz"):
        for row in written_rows(file):
            if (row["settings"].get("opt") or row["opt"]) == "adamw":
                assert len(row["optimizer_settings"]["betas"]) == 2, file

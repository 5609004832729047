"""Measured curves beside the theory: from run folders, and from the tuned runs of a ladder."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytest.importorskip("jax")

from danalab.errors import UserError
from danalab_annexes.theory.measured import compare_curves, compare_ladder, measured_curves


def write_run(folder, opt, exponent):
    folder.mkdir()
    x = np.geomspace(0.1, 1, 25)
    loss = 2.0 + 0.8 * x**-exponent
    rows = [
        {"step": i, "tokens": int(1e6 * t), "flops": 6e9 * t, "val/loss": y}
        for i, (t, y) in enumerate(zip(x, loss, strict=True))
    ]
    rows.insert(3, {"step": 3, "tokens": 1, "train/loss": 4.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "config.json").write_text(json.dumps({"config": {"opt": opt}}))


def test_measured_runs_are_compared_with_the_baseline(tmp_path):
    write_run(tmp_path / "a", "adamw", 0.4)
    write_run(tmp_path / "b", "adana", 0.5)
    report = compare_curves(measured_curves(tmp_path), speedup=1.5)
    rows = {row.opt: row for row in report.rows}
    assert rows["adana"].ratio_measured == pytest.approx(1.25, abs=0.02)
    assert rows["adana"].ratio_predicted == 1.5
    assert rows["adamw"].ratio_measured == 1.0


def test_a_ladder_is_compared_in_compute(tmp_path):
    lines = []
    for opt, exponent in (("adamw", 0.1), ("adana", 0.12)):
        for size in (1e6, 2e6, 4e6, 8e6, 16e6):
            flops = 120 * size**2
            row = {"opt": opt, "params": size, "tokens": 20 * size, "flops": flops, "lr": 1e-3, "curve": "none.jsonl"}
            lines.append(json.dumps({**row, "final_loss": 1.5 + 30 * flops**-exponent}))
    (tmp_path / "ladder.jsonl").write_text("\n".join(lines))
    report = compare_ladder(measured_curves(tmp_path), {"sgd": 0.5, "dana-decaying": 0.6})
    rows = {row.opt: row for row in report.rows}
    assert rows["adana"].ratio_measured == pytest.approx(1.2, abs=0.05)
    assert rows["adana"].ratio_predicted == pytest.approx(1.2)
    assert report.axis == "FLOPs"


def test_the_theory_says_nothing_of_optimizers_without_a_log_time_momentum(tmp_path):
    for opt in ("adamw", "adana", "muon"):
        write_run(tmp_path / opt, opt, 0.4)
    predicted = {row.opt: row.ratio_predicted for row in compare_curves(measured_curves(tmp_path), speedup=1.5).rows}
    assert predicted == {"adamw": 1.0, "adana": 1.5, "muon": None}


def test_of_a_ladder_the_best_rates_count_over_their_seeds_and_what_failed_does_not(tmp_path):
    lines = []
    for opt, exponent in (("adamw", 0.1), ("adana", 0.12)):
        for size in (1e6, 2e6, 4e6, 8e6, 16e6):
            flops = 120 * size**2
            for lr, off, seeds in ((1e-3, 0.0, (-0.01, 0.0, 0.01)), (4e-3, 0.6, (0.0,)), (9.0, math.nan, (0.0,))):
                for seed, luck in enumerate(seeds):
                    loss = 1.5 + 30 * flops**-exponent + off + luck
                    name = f"{opt}-{size:g}-{lr:g}-{seed}.jsonl"
                    point = {
                        "step": 9,
                        "tokens": int(20 * size),
                        "flops": flops,
                        "val/loss": loss if loss == loss else None,
                    }
                    (tmp_path / name).write_text(json.dumps(point))
                    row = {"opt": opt, "params": size, "tokens": 20 * size, "lr": lr, "flops": flops, "curve": name}
                    row |= {"settings": {"seed": seed, "data_seed": seed}}
                    lines.append(json.dumps({**row, "final_loss": point["val/loss"]}))
    (tmp_path / "ladder.jsonl").write_text("\n".join(lines))
    measured = measured_curves(tmp_path)
    assert len(measured) == 10
    rows = {row.opt: row for row in compare_ladder(measured, {"sgd": 0.5, "dana-decaying": 0.6}).rows}
    assert rows["adana"].ratio_measured == pytest.approx(1.2, abs=0.05)
    (tmp_path / "ladder.jsonl").write_text(lines[-1])
    with pytest.raises(UserError, match="no run has a finite final loss"):
        measured_curves(tmp_path)


def test_curves_without_a_baseline_are_refused(tmp_path):
    write_run(tmp_path / "b", "adana", 0.5)
    with pytest.raises(UserError, match="no baseline"):
        compare_curves(measured_curves(tmp_path / "b"), speedup=1.5)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a run folder"):
        measured_curves(tmp_path)

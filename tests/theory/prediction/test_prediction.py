from __future__ import annotations

import json
import math

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import PLRF, draw, load_spectrum, predict
from danalab.theory.prediction.measured import compare_curves, compare_ladder, fit_shapes, read_measured


@pytest.fixture(scope="module")
def drawn():
    return draw(PLRF(1.0, 0.4, 1600, 400), seed=0).spectrum


def test_exponents_of_a_random_draw_are_recovered(drawn):
    found = predict(drawn.lam, drawn.rho, horizon=1e4)
    assert found.alpha == pytest.approx(1.0, abs=0.06)
    assert found.beta == pytest.approx(0.4, abs=0.1)
    assert found.phase == "Ia"
    assert found.windows == pytest.approx([1.0, 1.0], abs=0.1)
    assert found.kappa == pytest.approx(1 / (2 * found.alpha))
    assert found.speedup() == pytest.approx(2 - found.kappa)
    risk = {name: curve.risk[-1] for name, curve in found.curves.items()}
    assert risk["dana-decaying"] < risk["dana-constant"] < risk["sgd"]


@pytest.mark.parametrize("suffix", [".json", ".npz", ".csv", ".txt"])
def test_every_format_gives_the_same_spectrum(tmp_path, suffix):
    lam, rho = np.arange(1, 41.0) ** -2, np.arange(1, 41.0) ** -1
    path = tmp_path / f"spectrum{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"lam": lam[::-1].tolist(), "rho": rho[::-1].tolist()}))
    elif suffix == ".npz":
        np.savez(path, lam=lam, rho=rho)
    else:
        np.savetxt(path, np.stack([lam, rho], 1), delimiter="," if suffix == ".csv" else " ")
    got_lam, got_rho = load_spectrum(path)
    np.testing.assert_allclose(got_lam, lam)
    np.testing.assert_allclose(got_rho, rho)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[1, 2, 3]", "at least 20"),
        ('{"eigenvalues": [1]}', "not a spectrum"),
        ("[1, -2]", "not negative"),
        ("{", "not a"),
    ],
)
def test_what_is_not_a_spectrum_is_refused(tmp_path, text, word):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=word):
        load_spectrum(tmp_path / "s.json")


def test_a_missing_spectrum_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        load_spectrum(tmp_path / "none.npz")


def test_beta_must_come_from_somewhere():
    with pytest.raises(UserError, match="--beta"):
        predict(np.arange(1, 41.0) ** -2)


def planted(limit, amplitude, exponent, n=25):
    x = np.geomspace(0.1, 1, n)
    return x, limit + amplitude * x**-exponent


def test_planted_shapes_are_recovered():
    fit = fit_shapes([planted(2.0, 0.8, 0.5), planted(2.0, 0.7, 0.6)])
    assert fit.limit == pytest.approx(2.0, abs=0.01)
    assert fit.exponents == pytest.approx([0.5, 0.6], abs=0.01)
    assert fit.r2 > 0.999


def write_run(folder, opt, exponent):
    folder.mkdir()
    x, loss = planted(2.0, 0.8, exponent)
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
    report = compare_curves(read_measured(tmp_path), speedup=1.5)
    rows = {row.opt: row for row in report.rows}
    assert rows["adana"].ratio == pytest.approx(1.25, abs=0.02)
    assert rows["adana"].predicted == 1.5
    assert rows["adamw"].ratio == 1.0


def test_a_ladder_is_compared_in_compute(tmp_path):
    lines = []
    for opt, exponent in (("adamw", 0.1), ("adana", 0.12)):
        for size in (1e6, 2e6, 4e6, 8e6, 16e6):
            flops = 120 * size**2
            row = {"settings": {"opt": opt}, "params": size, "tokens": 20 * size, "flops": flops}
            lines.append(json.dumps({**row, "final_loss": 1.5 + 30 * flops**-exponent}))
    (tmp_path / "ladder.jsonl").write_text("\n".join(lines))
    report = compare_ladder(read_measured(tmp_path), {"sgd": 0.5, "dana-decaying": 0.6})
    rows = {row.opt: row for row in report.rows}
    assert rows["adana"].ratio == pytest.approx(1.2, abs=0.05)
    assert rows["adana"].predicted == pytest.approx(1.2)
    assert report.axis == "FLOPs"


def test_the_theory_says_nothing_of_optimizers_without_a_log_time_momentum(tmp_path):
    for opt in ("adamw", "adana", "muon"):
        write_run(tmp_path / opt, opt, 0.4)
    predicted = {row.opt: row.predicted for row in compare_curves(read_measured(tmp_path), speedup=1.5).rows}
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
                    point = {"step": 9, "tokens": 20 * size, "flops": flops, "val/loss": loss if loss == loss else None}
                    (tmp_path / name).write_text(json.dumps(point))
                    row = {"opt": opt, "params": size, "tokens": 20 * size, "lr": lr, "flops": flops, "curve": name}
                    row |= {"settings": {"seed": seed, "data_seed": seed}}
                    lines.append(json.dumps({**row, "final_loss": point["val/loss"]}))
    (tmp_path / "ladder.jsonl").write_text("\n".join(lines))
    measured = read_measured(tmp_path)
    assert len(measured) == 10
    rows = {row.opt: row for row in compare_ladder(measured, {"sgd": 0.5, "dana-decaying": 0.6}).rows}
    assert rows["adana"].ratio == pytest.approx(1.2, abs=0.05)
    (tmp_path / "ladder.jsonl").write_text(lines[-1])
    with pytest.raises(UserError, match="no row has a finite final_loss"):
        read_measured(tmp_path)


def test_curves_without_a_baseline_are_refused(tmp_path):
    write_run(tmp_path / "b", "adana", 0.5)
    with pytest.raises(UserError, match="no baseline"):
        compare_curves(read_measured(tmp_path / "b"), speedup=1.5)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a run folder"):
        read_measured(tmp_path)

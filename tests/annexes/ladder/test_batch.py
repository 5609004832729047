"""Batches at equal tokens: critical batches with intervals, the exponent of the rate, the report."""

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.plan import LadderPlan
from danalab.report.data import MissingFigure, ReportData
from danalab.report.tables import analysis_tables
from danalab_annexes.ladder.batch import critical_batch
from danalab_annexes.ladder.figures import batch_figure
from danalab_annexes.ladder.preregistration import require_points

BATCHES = (2, 4, 8, 16, 32, 64, 128)
SCALE, POWER = 40.0, 0.04


def true_batch(scale=SCALE, power=POWER):
    """Where L = 1.01 L0."""
    return scale * (1.01 ** (1 / power) - 1)


def plant_batches(noise=2e-3, seed=0, seeds=3, b=0.4):
    """Rows with a critical batch of one optimizer, and none of the other; best rates grow as batch^b."""
    rng, rows = np.random.default_rng(seed), []
    for opt, power in (("adamw", POWER), ("adana", 0.0)):
        for batch in BATCHES:
            steps = 520_000 // (64 * batch)

            def run(step, s, opt=opt, power=power, batch=batch, steps=steps):
                lr = 0.01 * 2.0 ** (step / 2)
                best = 0.01 * (batch / 16) ** b
                loss = 2.4 * (1 + batch / SCALE) ** power + 0.03 * math.log(lr / best) ** 2
                name = f"{opt}-b{batch}-lr{lr:.4g}-s{s}"
                return {
                    "name": name, "run": name, "status": "finished", "opt": opt, "seed": s, "lr": lr, "batch": batch,
                    "lr_multiplier": lr, "kappa": None, "params": 3312, "non_emb_params": 3000, "total_params": 3250,
                    "tokens": steps * 64 * batch, "flops": 6.0 * 3000 * steps * 64 * batch, "curve": f"{name}.jsonl",
                    "final_loss": loss * math.exp(noise * rng.standard_normal()), "device_hours": 0.1,
                    "settings": {"tokens_per_param": 160, "seq_len": 64, "global_batch": batch, "iterations": steps},
                }  # fmt: skip

            centre = round(2 * b * math.log2(batch / 16))
            trials = [run(centre + step, 0) for step in (-2, -1, 0, 1, 2)]
            chosen = min(range(5), key=lambda i, trials=trials: trials[i]["final_loss"])
            rows += [*trials, *(run(centre + chosen - 2, s) for s in range(1, seeds))]
    return rows


def test_the_critical_batch_is_that_of_a_stated_loss():
    losses = [2.4 * (1 + batch / SCALE) ** POWER for batch in BATCHES]
    assert critical_batch(BATCHES, losses) == pytest.approx(true_batch(), rel=0.02)
    worse = [2.6, *losses[1:]]  # a batch that is too small by itself does not hide the rise
    assert critical_batch(BATCHES, worse) == pytest.approx(true_batch(), rel=0.02)
    assert critical_batch(BATCHES, [2.4] * 7) == math.inf
    assert critical_batch(BATCHES, losses[::-1]) == math.inf


def test_a_ladder_with_batches_has_critical_batches_and_an_exponent_and_all_else_at_one_batch():
    analysis = analyse(plant_batches(), n_bootstrap=60)
    assert len(analysis.tuned) == 2
    assert len(analysis.every) == 2 * len(BATCHES)
    assert len({each.batch for each in analysis.tuned}) == 1
    assert "horizon" not in analysis.studies, "tokens that differ by rounded steps are one horizon"
    assert any(note.startswith("several batches") for note in analysis.notes)
    adamw, adana = analysis.studies["batches"].critical
    assert (adamw.opt, adamw.measured, adamw.horizon) == ("adamw", (2, 128), 8)
    assert true_batch() in adamw.interval
    assert adamw.interval.high < 128
    assert adana.interval.high > 128
    for law in analysis.studies["exponents"]["lr"].values():
        assert law.exponents.keys() == {"T"}
        assert 0.4 in law.intervals["T"]
    differences = {each.batch: each for each in analysis.studies["batches"].tests}
    assert tuple(differences) == BATCHES
    assert differences[128].difference == pytest.approx(2.4 * ((1 + 128 / SCALE) ** POWER - 1), abs=0.02)
    json.dumps(analysis.as_dict(), allow_nan=False)


def test_runs_of_equal_settings_under_two_names_are_not_compared():
    rows = plant_batches(noise=1e-6)
    for row in rows:  # two names for one optimizer, which differ in beta2 except at the largest batch
        own = 0.95 if row["opt"] == "adamw" or row["batch"] == 128 else 0.95 ** (row["batch"] / 128)
        row["settings"] |= {"opt": "adamw", "optimizer_settings": {"beta2": own}}
        row["lr"] *= 1.0001 if row["opt"] == "adana" else 1
    tests = analyse(rows, n_bootstrap=0).studies["batches"].tests
    assert {test.batch for test in tests} == set(BATCHES) - {128}


@pytest.mark.slow
def test_intervals_of_the_critical_batch_cover_what_was_planted():
    intervals = [
        analyse(plant_batches(seed=seed), n_bootstrap=60).studies["batches"].critical[0].interval for seed in range(60)
    ]
    assert sum(true_batch() in each for each in intervals) >= 54


def test_one_seed_has_a_critical_batch_and_no_interval():
    critical = analyse(plant_batches(seeds=1, noise=1e-4), n_bootstrap=20).studies["batches"].critical[0]
    assert critical.batch == pytest.approx(true_batch(), rel=0.2)
    assert critical.interval is None


def test_the_report_shows_each_batch():
    rows = plant_batches()
    data = ReportData(analyse(rows, n_bootstrap=20), rows)
    tables = analysis_tables(data.analysis)
    headings, lines = tables["batches"][1]
    assert [line[headings.index("batch")] for line in lines if line[0] == "adana"] == list(map(str, BATCHES))
    assert {line[0]: line[3] for line in tables["critical-batch"][1][1]}["adana"].startswith("> 128")
    figure = batch_figure(data)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 2
    alone = [row for row in rows if row["batch"] == 8]
    data = ReportData(analyse(alone, n_bootstrap=0), alone)
    assert isinstance(batch_figure(data), MissingFigure)
    assert not analysis_tables(data.analysis)["batches"][1][1]


def test_several_batches_are_not_preregistered():
    size = {"d_model": 16, "n_layers": 1, "n_heads": 2}
    with pytest.raises(UserError, match=r"several batches.*--batches"):
        require_points(LadderPlan(opts=("adamw",), sizes=(size,), batches=(8, 2), fixed={}))

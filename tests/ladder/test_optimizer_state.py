"""Figures of what runs recorded beside their metrics, from planted statistics."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from danalab_annexes.ladder.optimizer_state import (
    clipping_figure,
    distribution,
    kind_of,
    merged_distribution,
    runs_with,
    tau_figure,
)
from scipy.stats import beta

from danalab.ladder.analysis import analyse
from danalab.ladder.rows import read_ladder
from danalab.ladder.sweeps import gamma3_figure, kappa_figure
from danalab.report.data import MissingFigure, ReportData
from danalab.train.statistics import order_statistics
from ladder.planted import plant


def data(folder, change=lambda row: row):
    """A planted ladder with its rows changed."""
    rows = [change(row) for row in read_ladder(plant(folder))]
    return ReportData(analyse(rows, n_bootstrap=0), rows)


def test_a_distribution_is_rebuilt_from_the_tails_of_its_order_statistics():
    tau = torch.tensor(beta(2, 5).rvs(20_000, random_state=0))
    values, shares = distribution(order_statistics(tau))
    assert np.all(np.diff(shares) >= 0)
    assert np.max(np.abs(beta(2, 5).cdf(values) - shares)) < 0.02


def test_parameters_are_merged_by_their_number_of_coordinates():
    parts = [order_statistics(torch.full((n,), value)) for n, value in ((300, 0.1), (100, 0.4))]
    values, shares = merged_distribution(parts)
    assert list(values) == pytest.approx([0.1, 0.4])
    assert list(shares) == pytest.approx([0.75, 1.0], abs=0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("token_embedding.weight", "embedding"),
        ("blocks.3.attention.q.weight", "attention"),
        ("blocks.0.mlp.down.weight", "mlp"),
        ("output_head.weight", "head"),
        ("blocks.0.attention.k_norm.weight", None),
        ("blocks.0.mlp.up.bias", None),
    ],
)
def test_parameters_belong_to_kinds_by_their_names(name, kind):
    assert kind_of(name) == kind


def test_what_was_not_recorded_is_absent_with_the_flag_that_records_it(tmp_path):
    without = data(tmp_path)
    for draw, flag in (
        (tau_figure, "--collect-tau-stats"),
        (clipping_figure, "--log-dynamics"),
        (kappa_figure, "kappa="),
    ):
        found = draw(without)
        assert isinstance(found, MissingFigure)
        assert flag in found.how


def test_the_share_that_is_clipped_is_drawn_by_layer(tmp_path):
    found = data(tmp_path)
    (run,) = [row for row in found.tuned_runs() if row["opt"] == "adana" and row["params"] == 640_000]
    folder = Path(run["run"])
    folder.mkdir(exist_ok=True)
    rows = [{"step": t, **{f"blocks.{i}.mlp.up.weight/clipped": 0.1 * (i + 1) / t for i in range(2)}} for t in (1, 10)]
    (folder / "signal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    axes = clipping_figure(found).axes[0]
    assert axes.get_title() == "mlp"
    assert [line.get_ydata()[0] for line in axes.get_lines()] == [0.1, 0.2]


def test_of_several_horizons_the_longest_is_looked_into(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path, seeds=1, multipliers=(1.0,))) if row["params"] == 10_000]
    longer = [
        {**row, "run": row["run"] + "-long", "tokens": 2 * row["tokens"], "flops": 2 * row["flops"]} for row in rows
    ]
    for row in (*rows, *longer):
        Path(row["run"]).mkdir(exist_ok=True)
        (Path(row["run"]) / "tau.jsonl").touch()
    found = ReportData(analyse([*rows, *longer], n_bootstrap=0), [*rows, *longer])
    assert {opt: str(folder) for opt, folder in runs_with(found, "tau.jsonl").items()} == {
        row["opt"]: row["run"] for row in longer
    }
    assert next(iter(found.tuned_runs()))["run"].endswith("-long")


def test_a_sweep_is_drawn_at_the_best_learning_rate_of_each_value(tmp_path):
    values = {0.25: 0.5, 0.5: 1.0, 1.0: 2.0, 2.0: 4.0}

    def change(row):
        return {**row, "settings": {"gamma3": values[row["lr_multiplier"]], "iterations": 100}}

    rows = [change(row) for row in read_ladder(plant(tmp_path, multipliers=tuple(values)))]
    figure = gamma3_figure(ReportData(analyse(rows, n_bootstrap=0), rows))
    labelled = [line for line in figure.axes[0].get_lines() if line.get_label().startswith("adana, 640k parameters")]
    assert list(labelled[0].get_xdata()) == [0.5, 1.0, 2.0, 4.0]
    assert int(np.argmin(labelled[0].get_ydata())) == 2


def test_a_sweep_of_kappa_shows_the_baselines_level_where_it_ran_as_long(tmp_path):
    rows = [row for row in read_ladder(plant(tmp_path, seeds=1, multipliers=(1.0,))) if row["params"] == 10_000]
    (base,), (one,) = ([row for row in rows if row["opt"] == opt] for opt in ("adamw", "adana"))
    swept = [{**one, "name": f"k{kappa}", "kappa": kappa, "settings": {"kappa": kappa}} for kappa in (0.7, 0.8, 0.9)]

    def levels(rows):
        figure = kappa_figure(ReportData(analyse(rows, n_bootstrap=0), rows))
        return [line.get_ydata()[0] for line in figure.axes[0].get_lines() if line.get_label() == "adamw"]

    assert levels([base, *swept]) == [base["final_loss"]]
    assert levels([{**base, "tokens": base["tokens"] / 2}, *swept]) == []

"""Comparisons, figures and pages, from run folders written by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.colors import OPTIMIZER_COLORS, optimizer_color
from danalab.errors import UserError
from danalab.report.comparison import COLUMNS, compare, markdown_table, noise_note, table_cells
from danalab.report.data import read_curve, tokens_to_reach
from danalab.report.figures.drawing import save_figure, svg_text
from danalab.report.figures.training import loss_figure, lr_figure
from danalab.report.page import Page

TOKENS = [1000, 2000, 4000, 8000]


def write_run(
    root: Path, name: str, opt: str, losses: list[float], seed: int = 0, lr: float = 1e-3, **settings: float
) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    config = {"config": {"opt": opt, "lr": lr, "seed": seed, **settings}, "params": 1000, "model": {"d_model": 8}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": i + 1, "tokens": t, "flops": 6.0 * t, "train/loss": loss + 0.1, "val/loss": loss}
        for i, (t, loss) in enumerate(zip(TOKENS, losses, strict=True))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "status": "finished",
        "step": len(losses),
        "val/loss": losses[-1],
        "val/bpb": 1.5,
        "time": 3.0,
        "tokens_per_second": 9.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def runs(tmp_path):
    """ADana gets to AdamW's last loss, 2.0, exactly half-way: at 4000 of 8000 tokens."""
    return [
        write_run(tmp_path, "base", "adamw", [4.0, 3.0, 2.5, 2.0]),
        write_run(tmp_path, "ours", "adana", [4.0, 3.0, 2.0, 1.5]),
        write_run(tmp_path, "late", "dana-mk4", [4.0, 3.5, 3.0, 2.5]),
    ]


def test_a_planted_saving_is_reported(runs):
    rows = compare([read_curve(run) for run in runs])
    assert [row.is_baseline for row in rows] == [True, False, False]
    assert rows[1].tokens_to_baseline == pytest.approx(4000)
    assert rows[1].compute_saved == pytest.approx(0.5)


def test_a_curve_that_never_gets_there_is_not_a_number(runs):
    row = compare([read_curve(run) for run in runs])[2]
    assert row.tokens_to_baseline is None
    assert row.compute_saved is None
    assert "not reached" in markdown_table([row])


def test_a_run_that_was_below_at_its_first_evaluation_has_bounds(runs, tmp_path):
    early = write_run(tmp_path, "early", "muon", [1.9, 1.8, 1.7, 1.6])
    row = compare([read_curve(run) for run in (*runs, early)])[3]
    cells = dict(zip(COLUMNS, table_cells(row), strict=True))
    assert cells["tokens to baseline's loss"] == "<= 1,000"
    assert cells["compute saved"] == ">= +87.5%"


def test_one_seed_is_said_to_leave_the_noise_unknown(runs, tmp_path, capsys):
    assert main(["compare", *map(str, runs)]) == 0
    assert "note: one seed of adamw, adana, dana-mk4: the noise is not known" in capsys.readouterr().out
    rows = [replace(row, seed=seed) for row in compare([read_curve(run) for run in runs]) for seed in (0, 1)]
    assert noise_note(rows) is None


def test_crossings_are_linear_in_log_tokens(runs):
    ours, late = map(read_curve, runs[1:])
    assert tokens_to_reach(ours, late) == pytest.approx(math.sqrt(2000 * 4000))


def test_the_baseline_can_be_named(runs):
    curves = [read_curve(run) for run in runs]
    assert compare(curves, "ours")[1].is_baseline
    with pytest.raises(UserError, match="--baseline nobody is not among the runs"):
        compare(curves, "nobody")


def test_compare_prints_json_and_draws(runs, tmp_path, capsys):
    out = tmp_path / "figures"
    assert main(["compare", *map(str, runs), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["baseline"] == "base"
    assert [row["opt"] for row in printed["runs"]] == ["adamw", "adana", "dana-mk4"]
    assert {p.name for p in out.iterdir()} == {
        "compare.html", "loss-tokens.png", "loss-tokens.svg", "loss-tokens.pdf",
        "loss-flops.png", "loss-flops.svg", "loss-flops.pdf", "table.md",
    }  # fmt: skip


def test_compare_refuses_what_is_no_run(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_seeds_are_drawn_as_one_line_with_a_band(tmp_path):
    curves = [
        read_curve(write_run(tmp_path, f"s{i}", "adana", [4.0, 3.0, 2.0 + i / 10, 1.5], seed=i)) for i in range(3)
    ]
    axes = loss_figure(curves).axes[0]
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["adana (3 seeds)"]
    assert len(axes.collections) == 1
    assert "[nats/token]" in axes.get_ylabel()


def test_runs_that_differ_in_more_than_seeds_are_lines_of_their_own_and_say_how(tmp_path):
    runs = [write_run(tmp_path, f"k{kappa}", "adana", [4.0, 3.0, 2.5, 2.0], kappa=kappa) for kappa in (0.5, 0.85)]
    figure = loss_figure([read_curve(run) for run in runs])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["adana, kappa 0.5", "adana, kappa 0.85"]


def test_an_optimizer_has_one_colour_everywhere(runs):
    curves = [read_curve(run) for run in runs]
    for figure in (loss_figure(curves), loss_figure(curves, "flops"), lr_figure(curves)):
        colors = {line.get_label().split()[0]: line.get_color() for line in figure.axes[0].lines}
        assert colors["adana"] == OPTIMIZER_COLORS["adana"]
    assert len(set(OPTIMIZER_COLORS.values())) == len(OPTIMIZER_COLORS)
    assert optimizer_color("somebody-new") == optimizer_color("somebody-new")


@pytest.mark.slow
def test_pictures_are_the_same_twice(runs, tmp_path):
    curves = [read_curve(run) for run in runs]
    first = save_figure(loss_figure(curves), tmp_path / "a")
    second = save_figure(loss_figure(curves), tmp_path / "b")
    assert first[1].read_text() == second[1].read_text()


def test_the_page_is_self_contained_and_shows_text_as_text(runs):
    page = Page("a <b> title", "lead")
    page.heading("samples & more")
    page.verbatim("<script>alert(1)</script>")
    page.figure(loss_figure([read_curve(run) for run in runs]), "loss against tokens")
    page.table(["a", "b"], [["1", "<2>"]])
    markup = page.render()
    assert '<pre tabindex="0">' in markup, "text that scrolls sideways is reached by keys"

    class Links(HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags: list[str] = []
            self.sources: list[str] = []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.sources += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")]

    links = Links()
    links.feed(markup)
    assert "script" not in links.tags
    assert links.sources == []
    assert "svg" in links.tags
    assert "&lt;2&gt;" in markup


def test_svg_has_no_prologue(runs):
    assert svg_text(loss_figure([read_curve(runs[0])])).startswith("<svg")

import math

import pytest
import yaml

from danalab.errors import UserError
from danalab.ladder.plan import LadderPlan, Rung, read_plan
from danalab.ladder.run import run_ladder
from danalab.ladder.runs.jobs import Failure, Job
from danalab.ladder.runs.sweep import SweepResult

SIZES = ({"d_model": 16, "n_layers": 1, "n_heads": 2}, {"d_model": 32, "n_layers": 1, "n_heads": 2})


def plan(fixed, **given):
    common = {key: value for key, value in fixed.items() if key not in ("d_model", "n_layers", "n_heads", "lr")}
    settings = {"opts": ("adamw", "adana"), "sizes": SIZES[:1], "multipliers": (0.5, 1.0), "seeds": (0, 1), **given}
    return LadderPlan(fixed=common, **settings)


def test_a_ladder_tunes_every_optimizer_alike_and_repeats_its_best(fixed, tmp_path):
    found = run_ladder(tmp_path, plan(fixed, extensions=1), executor="inline")
    assert not found.failures
    assert {each.opt for each in found.tuned} == {"adamw", "adana"}
    for each in found.tuned:
        assert each.trials >= 2
        assert each.losses[f"{each.multiplier:g}"] == min(each.losses.values())
        mine = [row for row in found.rows if row["opt"] == each.opt]
        assert len(mine) == each.trials + 1
        assert [row["seed"] for row in mine if row["lr_multiplier"] == each.multiplier] == [0, 1]
    seeds = {row["seed"]: row["settings"]["data_seed"] for row in found.rows}
    assert seeds[0] != seeds[1], "the order of the data is part of a seed"


def test_a_file_names_heads_or_sizes(tmp_path):
    file = tmp_path / "ladder.yaml"
    file.write_text(yaml.safe_dump({"opts": ["adamw"], "heads": [2, 3], "fixed": {"seq-len": 64, "omega": "4e0"}}))
    read = read_plan(file)
    assert read.sizes == ({"heads": 2}, {"heads": 3})
    assert read.fixed == {"seq_len": 64, "omega": 4.0}
    assert read.cell("adamw", Rung({"heads": 2}, None), 0.5, 1).name == "adamw-h2-lrx0.5-s1"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"opts": [], "heads": [2]}, "no opts"),
        ({"opts": ["adamw"], "sizes": []}, "no sizes"),
        ({"opts": ["adamw"], "heads": [2], "seed": [0]}, "unknown key 'seed'.*did you mean 'seeds'"),
        ({"opts": ["adamw", "adamw"], "heads": [2]}, "twice"),
        ({"opts": ["adamw"], "heads": [2], "multipliers": [0.0]}, "finite and positive"),
        ({"opts": ["adamw"]}, "no sizes, such as"),
        ({"opts": "adamw", "heads": [2]}, r"opts is 'adamw'; expected is something like opts: \["),
        ({"opts": ["adamw"], "heads": 2}, "heads is 2; expected"),
        ({"opts": ["adamw"], "heads": ["two"]}, "heads is"),
        ({"opts": ["adamw"], "sizes": [3]}, "sizes is"),
        ({"opts": ["adamw"], "heads": [2], "multipliers": 1}, "multipliers is 1"),
        ({"opts": ["adamw"], "heads": [2], "multipliers": ["a"]}, "multipliers is"),
        ({"opts": ["adamw"], "heads": [2], "seeds": ["x"]}, "seeds is"),
        ({"opts": ["adamw"], "heads": [2], "extensions": "two"}, "extensions is 'two'"),
        ({"opts": ["adamw"], "heads": [2], "fixed": [1]}, "fixed is"),
        ({"opts": ["adamw"], "heads": [2], "fixed": {"lr": 1e-3}}, "fixed has --lr, which the ladder sets"),
        ({"opts": ["adamw"], "heads": [2], "fixed": {"seed": 1}}, "fixed has --seed"),
        ({"opts": ["adamw", "AdamW"], "heads": [2]}, "twice: AdamW is adamw"),
        (
            {"opts": ["a-b"], "heads": [2], "variants": {"a-c": {"opt": "adana"}}},
            r"variants has 'a-c' \(did you mean 'a-b'",
        ),
    ],
)
def test_a_ladder_that_cannot_be_meant_is_refused(tmp_path, content, what):
    file = tmp_path / "ladder.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=what):
        read_plan(file)


def test_an_unknown_setting_is_refused_before_anything_runs(fixed, tmp_path):
    wrong = plan({**fixed, "sequence_len": 3})
    with pytest.raises(UserError, match="unknown key 'sequence_len'"):
        run_ladder(tmp_path / "out", wrong, executor="inline")
    assert not (tmp_path / "out").exists()


def test_a_ladder_stops_where_every_run_of_an_optimizer_fails_and_says_which(fixed, tmp_path, monkeypatch):
    parts = []

    def run(folder, cells, **_):
        parts.append(cells)
        refused = [cell.name for cell in cells if cell.settings["opt"] == "adana"]
        failures = [Failure(Job(folder / "runs" / name, {}), "no room") for name in refused]
        rows = [{"name": cell.name, "final_loss": 3.0} for cell in cells if cell.name not in refused]
        return SweepResult(folder, rows, failures)

    monkeypatch.setattr("danalab.ladder.run.run_sweep", run)
    found = run_ladder(tmp_path, plan(fixed))
    assert found.untuned == ["adana"]
    assert len(found.failures) == 2
    assert len(parts) == 1, "no further runs"


SLOW = {"adana-slow": {"opt": "adana", "kappa": 0.75}}


def test_with_horizons_a_rung_is_finished_before_the_next_begins(fixed, tmp_path, monkeypatch):
    parts, rows = [], []

    def run(folder, cells, **_):
        parts.append({(cell.settings["tokens_per_param"], cell.settings["seed"]) for cell in cells})
        rows.extend(
            {"name": cell.name, "final_loss": 3 + abs(math.log(cell.settings["lr_multiplier"] / 3))} for cell in cells
        )
        return SweepResult(folder, rows, [])

    monkeypatch.setattr("danalab.ladder.run.run_sweep", run)
    short = {key: value for key, value in fixed.items() if key != "iterations"}
    one = plan(short, horizons=(1, 4), trials=4, opts=("adamw", "adana-slow"), variants=SLOW)
    found = run_ladder(tmp_path, one)
    assert parts == [{(20, 0)}] * 3 + [{(20, 1)}] + [{(80, 0)}] * 3 + [{(80, 1)}]
    first = {each.opt: each.multiplier for each in found.tuned if each.horizon == 1}
    for each in found.tuned:
        if each.horizon == 4:
            assert f"{first[each.opt]:g}" in each.losses, "trials begin around the best rate of the rung before"
    assert {each.trials for each in found.tuned} == {4}


@pytest.mark.slow
def test_a_ladder_with_horizons_and_a_variant_runs(fixed, tmp_path):
    short = {key: value for key, value in fixed.items() if key != "iterations"}
    one = plan(short, horizons=(0.004, 0.008), seeds=(0,), opts=("adamw", "adana-slow"), variants=SLOW)
    found = run_ladder(tmp_path, one, executor="inline")
    assert not found.failures
    assert {(row["opt"], row["settings"]["opt"], row["kappa"]) for row in found.rows} == {
        ("adamw", "adamw", 0.85), ("adana-slow", "adana", 0.75),
    }  # fmt: skip
    assert all(row["data_tokens"] > 0 and row["entropy"] is None for row in found.rows)

import json
import math

import pytest
import yaml

from danalab.errors import UserError
from danalab.ladder.plan import LadderPlan, Rung, read_plan
from danalab.ladder.run import run_ladder
from danalab.sweep import run as sweep
from danalab.sweep.executors import PolledExecutor

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


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"merge": "line"}, r"merge line \(did you mean 'linear'"),
        ({"horizons": ()}, "merge: needs horizons"),
        ({"decay_law": "sqrt"}, "merge: needs horizons, and a weight decay"),
        ({"dials": {"all": {"scheduler": ("cos", "linear")}}}, "merge: sets --scheduler"),
        ({"horizons": (0.0003,)}, "a horizon of . steps has no two checkpoints"),
    ],
)
def test_a_ladder_that_cannot_be_merged_is_refused(fixed, tmp_path, given, what):
    common = {key: value for key, value in fixed.items() if key != "iterations"}
    with pytest.raises(UserError, match=what):
        run_ladder(tmp_path, plan(common, **{"horizons": (0.01, 0.02), "merge": "linear", **given}))


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


class Ticking(PolledExecutor):
    """Runs without training: each ends after a number of polls with a loss, or fails where that is None."""

    poll_seconds = 0.0

    def __init__(self, loss, ticks=lambda name: 1):
        super().__init__()
        self.loss, self.ticks, self.events, self.left = loss, ticks, [], {}

    def poll(self):
        for unit, future in self.units:
            if future not in self.left:
                self.left[future] = self.ticks(unit.job.folder.name)
                self.events.append(("start", unit.job.folder.name))
        for unit, future in self.units:
            self.left[future] -= 1
            if not self.left[future]:
                self.events.append(("end", unit.job.folder.name))
                loss = self.loss(unit.job.settings)
                if loss is None:
                    future.set_exception(UserError("no room"))
                else:
                    write_run(unit.job, loss)
                    future.set_result(None)
        self.units = [(unit, future) for unit, future in self.units if not future.done()]


def write_run(job, loss):
    job.folder.mkdir(parents=True)
    config = {"kappa": 0.85, "lr": 1e-3, **job.settings, "run_dir": str(job.folder)}
    record = {"config": config, "params": 1000, "plan": {"non_emb_params": 900, "total_params": 1000}}
    (job.folder / "config.json").write_text(json.dumps(record))
    (job.folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "tokens": 100, "val/loss": loss}) + "\n")
    summary = {"status": "finished", "step": 10, "val/loss": loss, "tokens": 100, "flops": 6e5, "time": 36.0}
    (job.folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def ticking(monkeypatch):
    """Ladders run at the executor that this is called with."""

    def use(*given):
        executor = Ticking(*given)
        monkeypatch.setattr(sweep, "open_executor", lambda *_, **__: executor)
        return executor

    return use


def test_a_ladder_stops_where_every_run_of_an_optimizer_fails_and_says_which(fixed, tmp_path, ticking):
    executor = ticking(lambda settings: 3.0 if settings["opt"] == "adamw" else None)
    found = run_ladder(tmp_path, plan(fixed))
    assert found.untuned == ["adana"]
    assert len(found.failures) == 2
    assert len([name for what, name in executor.events if what == "start"]) == 4, "no further runs"


SLOW = {"adana-slow": {"opt": "adana", "kappa": 0.75}}


@pytest.fixture
def two_rungs(fixed):
    short = {key: value for key, value in fixed.items() if key != "iterations"}
    return plan(short, horizons=(1, 4), trials=4, opts=("adamw", "adana-slow"), variants=SLOW)


def best_at_3(settings):
    return 3 + abs(math.log(settings["lr_multiplier"] / 3))


def test_the_trials_of_a_rung_begin_around_the_best_rate_of_the_rung_before(two_rungs, tmp_path, ticking):
    ticking(best_at_3)
    found = run_ladder(tmp_path, two_rungs)
    first = {each.opt: each.multiplier for each in found.tuned if each.horizon == 1}
    for each in found.tuned:
        if each.horizon == 4:
            assert f"{first[each.opt]:g}" in each.losses
    assert {each.trials for each in found.tuned} == {4}
    assert [(each.opt, each.horizon) for each in found.tuned] == [
        ("adamw", 1), ("adana-slow", 1), ("adamw", 4), ("adana-slow", 4),
    ]  # fmt: skip


def test_an_optimizer_does_not_wait_for_the_slowest_run_of_another_and_the_rows_are_the_same(
    two_rungs, tmp_path, ticking
):
    ticking(best_at_3)
    calm = run_ladder(tmp_path / "calm", two_rungs)
    slow = next(row["name"] for row in calm.rows if row["opt"] == "adamw")
    executor = ticking(best_at_3, lambda name: 40 if name == slow else 1)
    found = run_ladder(tmp_path / "slow", two_rungs)
    end = executor.events.index(("end", slow))
    others = [row["name"] for row in calm.rows if row["opt"] == "adana-slow"]
    assert all(executor.events.index(("end", name)) < end for name in others), "its second rung, too"
    mine = [row["name"] for row in calm.rows if row["opt"] == "adamw" and "f4" in row["name"]]
    assert mine
    assert all(executor.events.index(("start", name)) > end for name in mine), "they start from the best rate before"
    assert [row["name"] for row in found.rows] == [row["name"] for row in calm.rows]
    assert [row["final_loss"] for row in found.rows] == [row["final_loss"] for row in calm.rows]
    assert found.tuned == calm.tuned
    again = run_ladder(tmp_path / "slow", two_rungs)
    assert again.rows == found.rows
    assert len([what for what, _ in executor.events if what == "start"]) == len(calm.rows), "nothing was run again"


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

"""The search for the best settings of a ladder, and the ladder's runs."""

import math

import pytest

from danalab.cli.app import main
from danalab.experiments.ladder import RATE, LadderPlan, run_ladder, search
from danalab.experiments.runs import Runner


def valley(best, depth=1.0):
    """A loss that is least at the `best` value of each dial."""

    def losses(trials):
        return [
            3 + sum(depth * math.log(each[name] / value) ** 2 for name, value in best.items())
            for each in trials
        ]

    return losses


def test_three_rates_and_further_ones_while_the_best_is_at_an_edge():
    found = search(valley({RATE: 8.0}), [0.5, 1.0, 2.0], {}, most=20)
    assert 8.0 in [each[RATE] for each, _ in found.tried.values()]
    assert not found.is_at_edge(RATE)
    assert found.best[RATE] == pytest.approx(8.0, rel=0.1)


def test_every_optimizer_has_exactly_as_many_trials():
    for best in (0.01, 1.0, 1.3, 100.0):
        assert len(search(valley({RATE: best}), [0.5, 1.0, 2.0], {}, most=7).tried) == 7


def test_a_dial_at_an_edge_is_followed_and_the_others_are_searched_again():
    def tied(trials):  # the best rate goes with omega
        return [
            3 + math.log(each[RATE] / (each["omega"] / 4)) ** 2 / 10 + math.log(each["omega"] / 32) ** 2 / 4
            for each in trials
        ]

    found = search(tied, [0.5, 1.0, 2.0], {"omega": [4.0, 8.0]}, most=60)
    assert found.best["omega"] >= 16
    assert found.best[RATE] >= 4
    assert not found.is_at_edge("omega")
    assert found.loss < 3.1


def test_settings_that_are_no_numbers_are_tried_and_not_followed():
    def losses(trials):
        return [3 + math.log(each[RATE]) ** 2 - (each["betas"] == [0.9, 0.99]) for each in trials]

    found = search(losses, [0.5, 1.0, 2.0], {"betas": [[0.9, 0.95], [0.9, 0.99]]}, most=9)
    assert found.best["betas"] == [0.9, 0.99]
    assert not found.is_at_edge("betas")
    assert len(found.tried) <= 9


def test_where_every_trial_fails_the_search_ends():
    found = search(lambda trials: [math.inf for _ in trials], [0.5, 1.0, 2.0], {"omega": [4.0, 8.0]}, most=9)
    assert math.isinf(found.loss)


def plan(**more):
    return LadderPlan(
        **{"opts": ("adamw", "adana"), "sizes": ({"heads": 3},), "seeds": (0, 1), "trials": 6, **more}
    )


def test_a_ladder_tunes_and_repeats_the_best_with_other_seeds(trainer, tmp_path):
    runner = Runner(tmp_path, jobs=2)
    tuned, _ = run_ladder(plan(), runner)
    assert [each.trials for each in tuned] == [6, 6]
    for each in tuned:
        assert each.settings[RATE] == pytest.approx(1.2, rel=0.2)
        assert each.edges == []
        mine = [row for row in runner.gather() if row["opt"] == each.opt]
        best = [row for row in mine if row["lr_multiplier"] == each.settings[RATE]]
        assert [row["seed"] for row in best] == [0, 1]
        assert len(mine) == 7
    made = len(trainer())
    again, _ = run_ladder(plan(), Runner(tmp_path, jobs=2))
    assert len(trainer()) == made, "a finished ladder makes no run"
    assert again == tuned


def test_dials_are_tuned_on_every_rung_and_rates_start_from_the_rung_before(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("OMEGA", "16")
    ladder = plan(horizons=(1, 4), dials={"all": {"decay": (1, 2)}}, trials=12)
    tuned, _ = run_ladder(ladder, Runner(tmp_path, jobs=2))
    assert [each.rung for each in tuned[:2]] == ["heads=3 f=1", "heads=3 f=4"]
    assert {each.settings["decay"] for each in tuned} == {4.0}
    assert {each.trials for each in tuned} == {12}


def test_an_optimizer_that_always_fails_is_named(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERGES", " ".join(f"adana-h3-lrx{m:g}-s0" for m in (0.5, 1, 2)))
    tuned, untuned = run_ladder(plan(), Runner(tmp_path, jobs=2))
    assert untuned == ["adana at heads=3"]
    assert [each.opt for each in tuned] == ["adamw"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opts: [adamw]", "no sizes"),
        ("opts: [adamw, adamw]\nheads: [2]", "one of opts is there twice"),
        ("opts: [adamw, AdamW]\nheads: [2]", "one of opts is there twice"),
        ("opts: [adamw]\nheads: [2]\ndials: {all: {kappa: [1, 1.0]}}", "a value of kappa is there twice"),
        ("opts: [adamw]\nheads: [2]\nseedss: [0]", "unknown key 'seedss'"),
        ("opts: [adamw]\nheads: [2]\nmultipliers: [0]", "multipliers"),
        ("opts: [adamw]\nheads: [2]\ntrial_seeds: 4", "trial_seeds is 4; it must be 1 to 3"),
        ("opts: [adamw]\nheads: [2]\nstart: {adana: 2}", "start has 'adana'"),
        ("opts: [adamw]\nheads: [2]\nfixed: {lr: 1}", "fixed has --lr, which the ladder sets"),
        ("opts: [adamw]\nheads: [2]\ndecay_law: sqrt", "give horizons"),
        ("opts: [adamw]\nheads: [2]\nhorizons: [1]\nfixed: {iterations: 3}", "--iterations beside horizons"),
        ("opts: [adamw]\nheads: [2]\ntrials: 2", "trials is 2; it must be 3 at least"),
        ("opts: [adamw, adana]\nheads: [2]\ndials: {adana: {kappa: [0.8, 0.9]}}", "budgets are equal"),
        (
            "opts: [adamw]\nheads: [2]\ndials: {all: {decay: [1, 2]}}\nfixed: {omega: 2}",
            "beside a decay law or dial",
        ),
        ("opts: [mine]\nheads: [2]\nvariants: {mine: {kappa: 1}}", "variants: mine has no opt"),
        ("[1]", "a mapping is expected"),
    ],
)
def test_what_no_ladder_can_be_made_of_is_refused_by_file_and_key(text, message, tmp_path, capsys):
    file = tmp_path / "ladder.yaml"
    file.write_text(text)
    assert main(["ladder", str(file), "--dry-run"]) == 2
    assert message in capsys.readouterr().err

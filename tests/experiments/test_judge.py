"""The judge: equal trials, paired seeds, a test that may stop at any time, and a ledger that nothing is lost from."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from bench import judge_power

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.experiments import judge as module
from danalab.experiments.judge import (
    BETTER,
    EQUAL,
    UNDECIDED,
    WORSE,
    decide,
    interval,
    judge,
    read_side,
    warning_of,
)
from danalab.experiments.settings import JudgeConfig

OWN = '''
import torch

class Signs(torch.optim.Optimizer):
    """The sign of each gradient."""

    def __init__(self, params, lr=1e-3, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * group["scale"] * p.grad.sign())

class Raises(Signs):
    def step(self, closure=None):
        raise RuntimeError("no step today")
'''


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


def config(tmp_path, contender="adana", **more):
    settings = {
        "track": "quadratic",
        "steps": 8,
        "trials": 2,
        "budget": "10runs",
        "ledger": tmp_path / "ledger",
        **more,
    }
    return JudgeConfig(baseline="adamw", contender=contender, **settings)


@pytest.fixture
def threads(monkeypatch):
    """Runs are made by a thread of this process, which starts in no time."""
    monkeypatch.setattr(module, "workers", lambda jobs: ThreadPoolExecutor(1))


# ---- the test ----
def test_the_stored_simulation_is_of_this_test_and_keeps_what_the_page_says():
    rng = np.random.default_rng(0)
    samples = np.concatenate([rng.normal(size=(6, 40)) - effect for effect in (0.0, 1.0)])
    pairs, _ = judge_power.pairs_to_decide(samples)
    for x, n in zip(samples.tolist(), pairs, strict=True):
        decided = [k for k in range(module.LEAST_PAIRS, 41) if decide(x[:k], 0.05, 1e-9) in (BETTER, WORSE)]
        assert min(decided, default=math.inf) == n
    effects, nulls = ([row for row in judge_power.stored() if kind in row] for kind in ("effect", "null"))
    assert all(row["judge"] <= 2 * row["t_test_equal"] for row in effects)
    assert nulls[0]["null"] == "normal"
    assert max(nulls[0]["better"], nulls[0]["worse"]) <= 0.05


def test_decisions_follow_from_the_interval():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=40) * 0.003
    assert decide((noise - 0.05).tolist(), 0.05, 0.01) == BETTER
    assert decide((noise + 0.05).tolist(), 0.05, 0.01) == WORSE
    assert decide(noise.tolist(), 0.05, 0.01) == EQUAL
    assert decide((noise - 0.05).tolist()[:2], 0.05, 0.01) == UNDECIDED
    assert interval([1.0], 0.05) == (-math.inf, math.inf)
    low, high = interval([0.5, 0.5, 0.5, 0.5], 0.05)
    assert low == pytest.approx(high) == pytest.approx(0.5)


def test_stuck_runs_are_warned_of():
    rng = np.random.default_rng(0)
    x = (0.01 * rng.normal(size=20)).tolist()
    assert warning_of(x) == ""
    assert "1 of 21 pairs" in warning_of([*x, 1.0])


# ---- whole judgements ----
def test_a_judgement_ends_in_words_and_is_answered_from_the_ledger(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(
        module, "decide", lambda differences, *_: BETTER if len(differences) >= 2 else UNDECIDED
    )
    first = judge(config(tmp_path, difference=9.0))
    assert (first.decision, first.pairs, first.runs) == (BETTER, 2, 8)
    lines = first.lines()
    assert lines[0] == "adana vs adamw on quadratic: BETTER"
    assert "loss difference" in lines[1]
    assert "of 2 seeds favour adana" in lines[3]
    assert "adana: the best rate is an outermost one tried" in first.warning
    assert "--difference is above the losses" in first.warning
    heard = []
    assert judge(config(tmp_path, difference=9.0), heard.append) == first
    assert "answered from" in heard[0]
    assert len((tmp_path / "ledger" / "judge.jsonl").read_text().splitlines()) == 1


def test_an_undecided_question_goes_on_where_it_was_also_after_a_kill(tmp_path, threads):
    first = judge(config(tmp_path, budget="8runs"))
    assert (first.decision, first.pairs, first.runs) == (UNDECIDED, 2, 8)
    assert first.lines()[-1] == "  rerun with a larger --budget to continue"
    runs = tmp_path / "ledger" / "runs.jsonl"
    runs.write_text(runs.read_text()[:-40])  # a kill cuts the last line short
    second = judge(config(tmp_path, budget="6runs"))
    assert (second.pairs, second.runs) == (4, 5)
    assert len(runs.read_text().splitlines()) == 13  # 8, of which one is cut short, and 5 new ones


def test_ones_own_optimizer_takes_part_and_its_error_is_one_line(tmp_path, own, threads):
    verdict = judge(config(tmp_path, f"{own}:Signs:scale=0", budget="6runs"))
    assert verdict.pairs == 1
    assert "Signs:scale=0 did not learn" in verdict.warning
    assert verdict.lines()[3].endswith("steps saved -")
    with pytest.raises(UserError, match=r"Raises': RuntimeError: no step today"):
        judge(config(tmp_path, f"{own}:Raises"))


def test_a_side_is_known_by_its_code_and_settings(own):
    assert read_side("adana:kappa=0.8").settings == {"kappa": 0.8}
    digests = {read_side(text).digest for text in ("adana", "adana:kappa=0.8", f"{own}:Signs")}
    assert len(digests) == 3
    before = read_side(f"{own}:Signs").digest
    own.write_text(OWN + "\n# changed\n")
    assert read_side(f"{own}:Signs").digest != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adamw", "adanna"], "adanna"),
        (["adamw", "adamw"], "same optimizer with the same settings"),
        (["adamw", "adana:kapa=0.8"], "kapa"),
        (["adamw", "adana", "--track", "imagess"], "unknown track 'imagess' (did you mean 'images'"),
        (["adamw", "adana", "--budget", "soon"], "--budget soon"),
        (["adamw", "adana", "--alpha", "2"], "alpha"),
        (["adamw", "adana", "--budget", "1runs", "--trials", "1"], "ended before a rate was found"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_line(words, message, tmp_path, capsys):
    assert main(["judge", *words, "--ledger", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_json_and_exit_codes_are_for_programs(tmp_path, capsys):
    words = [
        "--track",
        "quadratic",
        "--steps",
        "4",
        "--trials",
        "1",
        "--budget",
        "4runs",
        "--jobs",
        "1",
        "--ledger",
        str(tmp_path),
    ]
    assert main(["judge", "adamw", "adana", *words, "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == UNDECIDED
    assert told["lines"][0].endswith("UNDECIDED (budget used up)")

"""Judgements: the answer, resuming, the ledger, and optimizers that misbehave."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
from dataclasses import asdict, replace
from statistics import fmean
from typing import ClassVar

import numpy as np
import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.judge import JudgeConfig, workers
from danalab.judge import judge as module
from danalab.judge import ledger as ledger_module
from danalab.judge.all_tracks import SEEDS, all_tracks
from danalab.judge.judge import ablate, judge
from danalab.judge.ledger import Ledger
from danalab.judge.tracks import TRACKS, get_track
from danalab.judge.verdict import PairedVerdict, compute_saved, log_speed, verdict_from_row
from danalab.judge.workers import PlannedRun, RunResult, read_contestant, run_trial
from danalab.optim.rules.age import AGES


class InThisProcess:
    """Stands for `Workers`: makes runs here, up to a number of them."""

    made = 0
    most = math.inf

    def __init__(self, jobs: int):
        self.jobs = jobs

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, trials, limit):
        for trial in trials:
            if type(self).made >= self.most:
                raise KeyboardInterrupt
            type(self).made += 1
            yield trial, self.run(trial)

    def run(self, trial):
        return run_trial(trial)


@pytest.fixture
def inline(monkeypatch):
    workers = type("Inline", (InThisProcess,), {})
    monkeypatch.setattr(module, "Workers", workers)
    return workers


class Invented(InThisProcess):
    """Runs that take no time: the loss is a function of optimizer, rate and seed."""

    failures: ClassVar[dict] = {}
    """(optimizer, seed) -> result in place of the run's own."""

    def run(self, trial):
        opt, draw = trial.contestant.opt, random.Random(f"{trial.contestant.opt} {trial.seed}")
        rate = 0.001 * math.log(trial.lr / 0.01) ** 2
        loss = 3 + rate + random.Random(trial.seed).gauss(0, 0.1) + draw.gauss(0, 0.05) + 0.5 * (opt == "sgd")
        loss = float(np.float32(loss))  # as torch's are
        return self.failures.get((opt, trial.seed), RunResult(loss, (0, trial.steps), (5.5, loss), 1.0))


@pytest.fixture
def invented(monkeypatch):
    workers = type("Invented", (Invented,), {})
    monkeypatch.setattr(module, "Workers", workers)
    return workers


def config(folder, *contestants, **settings) -> JudgeConfig:
    given = {"track": "synthetic", "steps": 6, "trials": 2, "ledger": folder, "budget": "60runs", **settings}
    return JudgeConfig(contestants=contestants, **given)


def test_a_contender_that_cannot_learn_is_worse_and_the_answer_is_kept(inline, tmp_path):
    (judged,) = judge(config(tmp_path, "adamw", "sgd:momentum=0", difference=1e-4, bound=0.05))
    verdict = judged.verdict
    assert verdict.decision == "worse"
    assert 0 < verdict.low < verdict.effect < verdict.high
    assert verdict.pairs >= 3
    assert verdict.noise > 0
    assert verdict.saved is not None
    assert verdict.saved[0] < 0
    assert verdict.sentence().startswith("sgd:momentum=0 is worse than adamw on synthetic: its loss is ")
    made = inline.made
    (again,) = judge(config(tmp_path, "adamw", "sgd:momentum=0", difference=1e-4, bound=0.05))
    assert inline.made == made, "a settled question is answered from the ledger"
    assert again.verdict == verdict


def test_a_killed_judgement_goes_on_to_the_same_verdict(invented, tmp_path):
    (whole,) = judge(config(tmp_path / "whole", "adamw", "sgd"))
    invented.made, invented.most = 0, 7
    with pytest.raises(KeyboardInterrupt):
        judge(config(tmp_path / "killed", "adamw", "sgd"))
    runs = tmp_path / "killed" / "runs.jsonl"
    runs.write_bytes(runs.read_bytes()[:-9])  # and the last line was cut
    invented.most = math.inf
    (resumed,) = judge(config(tmp_path / "killed", "adamw", "sgd"))
    same = ("decision", "effect", "low", "high", "noise", "pairs", "saved", "rates")
    assert [getattr(resumed.verdict, name) for name in same] == [getattr(whole.verdict, name) for name in same]
    assert invented.made < 7 + whole.verdict.runs


def test_a_spent_budget_is_undecided_and_more_budget_continues(invented, tmp_path):
    (first,) = judge(config(tmp_path, "adamw", "adana", budget="8runs", difference=1e-6))
    assert (first.verdict.decision, first.verdict.pairs) == ("undecided", 2)
    made = invented.made
    (second,) = judge(config(tmp_path, "adamw", "adana", budget="16runs", difference=1e-6))
    assert second.verdict.pairs > 2
    assert second.verdict.runs == invented.made - made <= 16


@pytest.mark.parametrize("jobs", [4, 7])
def test_the_verdict_does_not_depend_on_the_number_of_jobs(invented, tmp_path, jobs):
    asked = ("adamw", "adana"), {"budget": "15runs", "difference": 1e-6}
    (one,) = judge(config(tmp_path / "two", *asked[0], **asked[1], jobs=2))
    made = invented.made
    (more,) = judge(config(tmp_path / "more", *asked[0], **asked[1], jobs=jobs))
    assert [replace(each.verdict, seconds=0.0) for each in (one, more)] == [replace(one.verdict, seconds=0.0)] * 2
    assert invented.made == 2 * made, "the budget ended it: none was made in vain"


def test_pairs_are_made_ahead_and_used_in_order(invented, tmp_path, monkeypatch):
    blocks, execute = [], invented.execute

    def backwards(self, trials, limit):
        blocks.append(len(trials))
        return execute(self, trials[::-1], limit)

    monkeypatch.setattr(invented, "execute", backwards)
    (judged,) = judge(config(tmp_path, "adamw", "sgd", jobs=6))
    assert blocks == [2, 2, 6, 6, 6], "two rounds of rates, then three pairs at a time"
    assert 6 < judged.verdict.pairs < 9, "one of them was not needed"


def test_a_pair_without_a_loss_on_either_side_counts_for_nothing(invented, tmp_path):
    invented.failures = {(opt, 2): RunResult(None, failure="diverged") for opt in ("adamw", "adana")}
    (judged,) = judge(config(tmp_path, "adamw", "adana", budget="14runs", difference=1e-6))
    differences = [other.loss - base.loss for base, other in judged.pairs if base.loss is not None]
    assert (judged.verdict.pairs, len(differences)) == (5, 4)
    assert judged.verdict.effect == pytest.approx(fmean(differences))


def test_one_failed_run_decides_nothing_and_failures_every_time_do(invented, tmp_path):
    invented.failures = {("adana", 1): RunResult(None, failure="diverged")}
    (judged,) = judge(config(tmp_path / "one", "adamw", "adana", budget="12runs", difference=1e-6))
    assert judged.verdict.decision == "undecided"
    assert judged.pairs[0][0].losses[0] - judged.pairs[0][0].loss == pytest.approx(
        judged.verdict.effect * 4 - sum(other.loss - base.loss for base, other in judged.pairs[1:])
    ), "a failed run counts with the loss it began with"
    invented.failures = {("adana", seed): RunResult(None, failure="diverged") for seed in range(1, 30)}
    (judged,) = judge(config(tmp_path / "all", "adamw", "adana", difference=1e-6))
    assert judged.verdict.decision == "worse"


def test_a_run_that_was_killed_is_made_again_and_one_that_failed_by_itself_is_not(invented, tmp_path):
    killed = RunResult(None, failure="its process died (exit code -9)", from_outside=True)
    invented.failures = {("adana", 2): killed}
    (judged,) = judge(config(tmp_path, "adamw", "adana", budget="30runs", difference=1e-6))
    assert (judged.verdict.decision, judged.verdict.pairs) == ("undecided", 1)
    invented.failures, made = {}, invented.made
    (judged,) = judge(config(tmp_path, "adamw", "adana", budget="2runs", difference=1e-6))
    assert invented.made == made + 1, "the killed run alone, then the budget ends at the next pair"
    assert judged.verdict.pairs == 2
    trial = PlannedRun("synthetic", 6, read_contestant("adamw"), 0.5, 7)
    Ledger(tmp_path).add_run(trial, RunResult(None, failure="RuntimeError: no"))
    assert Ledger(tmp_path).run(trial).failure == "RuntimeError: no"


def test_stored_runs_of_the_baseline_are_used_where_one_is_reproduced_here(invented, tmp_path, monkeypatch):
    asked = {"budget": "14runs", "difference": 1e-6}
    (first,) = judge(config(tmp_path / "first", "adamw", "adana", **asked))
    rows = [json.loads(line) for line in (tmp_path / "first" / "runs.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["contestant"] == "adamw"]
    runs = [
        {"lr": float(row["run"].split("/lr")[1].split("/")[0]), "seed": int(row["run"].rpartition("/s")[2]), **row}
        for row in rows
    ]
    track = {"steps": 6, "at": rows[0]["steps"], "seconds": 1.0, "runs": runs}
    monkeypatch.setattr(ledger_module, "STORED", tmp_path / "stored.json")
    for name, here, most in (
        ("same", ledger_module.processor(), 8),
        ("other processor", "another", 14),
        ("other bits", ledger_module.processor(), 14),
    ):
        if name == "other bits":
            runs[0]["losses"][1] *= 1 + 1e-7
        (tmp_path / "stored.json").write_text(json.dumps({here: {"tracks": {"synthetic": track}}}))
        (judged,) = judge(config(tmp_path / name, "adamw", "adana", **asked | {"budget": f"{most}runs"}))
        assert (judged.verdict.runs, judged.verdict.pairs, judged.verdict.effect) == (most, 5, first.verdict.effect), (
            name
        )


def test_a_verdict_without_bounds_is_read_as_it_was_written(tmp_path):
    verdict = PairedVerdict(
        "b", "a", "char", "undecided", 0.5, -math.inf, math.inf, (-math.inf, math.inf), 0.6, 0.04, 1, 0.01, 0.1, 1,
        None, (0.1, 0.2), 2, 1.0, 1, "nats",
    )  # fmt: skip
    Ledger(tmp_path).add_answer("judge.jsonl", asdict(verdict))
    (row,) = Ledger(tmp_path).verdicts()
    assert (row["low"], row["high"]) == (None, None)
    assert verdict_from_row(row) == verdict
    assert "0.5000 nats higher" in verdict.sentence()
    none = replace(verdict, pairs=0, noise=math.nan).sentence()
    assert none == "b against a on char is undecided: no pair of runs was complete when the budget ended."


def test_asking_again_takes_fresh_seeds_and_a_share_of_alpha(invented, tmp_path):
    (first,) = judge(config(tmp_path, "adamw", "sgd"))
    (second,) = judge(config(tmp_path, "adamw", "sgd", again=True))
    assert (first.verdict.look, second.verdict.look) == (1, 2)
    assert second.verdict.alpha < first.verdict.alpha / 2
    assert first.verdict.alpha + second.verdict.alpha < 0.05
    assert second.verdict.effect != first.verdict.effect


def test_contenders_of_one_call_share_alpha_and_the_answer_says_so(invented, tmp_path):
    first, second = (each.verdict for each in judge(config(tmp_path, "adamw", "sgd", "adana", difference=1e-6)))
    (alone,) = judge(config(tmp_path / "alone", "adamw", "sgd", difference=1e-6))
    assert first.alpha == second.alpha == alone.verdict.alpha / 2 == 0.8 * 0.05 / 2
    assert "with error 0.02, its share among 2 contenders." in second.sentence()
    assert "with error 0.04." in alone.verdict.sentence()
    made = invented.made
    (same,) = judge(config(tmp_path, "adamw", "sgd", difference=1e-6, alpha=0.025))
    assert (same.verdict, invented.made) == (first, made), "a share is the same question as a smaller alpha"


def test_the_bound_comes_from_the_loss_before_training_or_is_declared(invented, tmp_path):
    (judged,) = judge(config(tmp_path, "adamw", "sgd"))
    assert judged.verdict.bound == pytest.approx(0.1 * 5.5)
    assert "for any differences up to 0.55" in judged.verdict.sentence()
    (other,) = judge(config(tmp_path, "adamw", "sgd", bound=1.0))
    assert (other.verdict.bound, other.verdict.look) == (1.0, 2), "the seeds were seen: fresh ones"
    assert {base.loss for base, _ in other.pairs}.isdisjoint(base.loss for base, _ in judged.pairs)
    with pytest.raises(UserError, match=r"--bound 0.005: is out of range; it must be above"):
        judge(config(tmp_path, "adamw", "sgd", bound=0.005))


def test_an_answer_of_the_normal_test_alone_is_asked_again_and_counts_as_a_look(invented, tmp_path):
    judge(config(tmp_path, "adamw", "sgd"))
    (row,) = Ledger(tmp_path).verdicts()
    del row["question"]["bound"]
    row = {name: value for name, value in row.items() if name not in ("bound", "normal", "contenders", "warnings")}
    (tmp_path / "judge.jsonl").write_text(json.dumps(row) + "\n")
    (judged,) = judge(config(tmp_path, "adamw", "sgd"))
    assert (judged.verdict.decision, judged.verdict.look) == ("worse", 2)


def test_a_contender_that_is_stuck_now_and_then_is_not_called_better(invented, tmp_path):
    def loss(trial):
        seed, opt = trial.seed, trial.contestant.opt
        value = 3 + random.Random(f"{opt} {seed}").gauss(0, 0.002)
        value += (0.7 if seed == 9 else -0.07) if opt == "adana" else 0.0
        return RunResult(value, (0, trial.steps), (5.5, value), 1.0)

    invented.run = lambda self, trial: loss(trial)
    (judged,) = judge(config(tmp_path, "adamw", "adana", budget="130runs"))
    verdict = judged.verdict
    assert verdict.decision == "undecided"
    assert verdict.high > 0
    assert "Warning: 1 of" in verdict.sentence()
    assert "by more than the bound" in verdict.sentence()
    assert _read(tmp_path) == [list(verdict.warnings)]


def _read(folder):
    return [row["warnings"] for row in Ledger(folder).verdicts()]


def test_the_compute_saved_holds_at_the_stop_and_never_exceeds_the_length():
    """A confidence sequence: wherever a judgement stops on purpose, it covers in at least 1 - alpha."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(60):
        logs = 0.05 * rng.standard_normal(40) - 0.05
        pairs = [(RunResult(1.0, (0, 100), (2.0, 1.0)), _as_fast(math.exp(each))) for each in logs]
        for n in range(4, 41, 4):
            _, low, high = compute_saved(pairs[:n], 0.05)
            if low > 0:  # stop when it looks best
                missed += not low <= 1 - math.exp(-0.05) <= high
                break
    assert missed <= 3
    assert compute_saved(pairs[:3], 1e-6) == pytest.approx((1 - math.exp(fmean(logs[:3])), -99.0, 0.99))


def _as_fast(ratio: float) -> RunResult:
    """A run that reaches a loss of 1 after 100 ratio steps."""
    return RunResult(0.9, (0, 100 * ratio, 200), (2.0, 1.0, 0.9))


def test_an_optimizer_that_fails_costs_its_runs_and_one_line(inline, tmp_path, own):
    with pytest.raises(UserError, match=r"Raises' has no finite loss .*RuntimeError: no step today") as caught:
        judge(config(tmp_path, "adamw", f"{own}:Raises"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"Diverges' has no finite loss .*diverged"):
        judge(config(tmp_path, "adamw", f"{own}:Diverges"))


@pytest.mark.slow
def test_the_command_judges_an_optimizer_in_a_file(own, tmp_path, capsys):
    words = ["judge", "adamw", f"{own}:Signs:scale=2", "--track", "synthetic", "--steps", "6", "--trials", "2"]
    code = main([*words, "--budget", "20runs", "--ledger", str(tmp_path), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == {"better": 0, "worse": 1, "no difference": 1, "undecided": 3}[answer["verdicts"][0]["decision"]]
    assert "<svg" in (tmp_path / "judgement.html").read_text()
    assert main(["judge", "--board", "--ledger", str(tmp_path)]) == 0
    assert "own.py:Signs:scale=2" in capsys.readouterr().out


def test_another_source_of_a_plugins_path_of_ages_is_another_contestant(monkeypatch):
    AGES.add("test-judged", lambda t, s, share: share * t**0.5)
    monkeypatch.setitem(AGES._plugins, "test-judged", "paths.py")
    found = []
    for source in ("a", "b", "b"):
        monkeypatch.setattr(workers, "digests", lambda source=source: {"paths.py": source})
        found.append(read_contestant("muon:age=test_judged(0.1)").digest)
    assert found[0] != found[1] == found[2]


def of_parts(self, trial):
    """Good makes a loss lower, bad higher, idle neither; without any setting nothing trains."""
    settings = dict(trial.contestant.settings)
    if not settings:
        return RunResult(None, failure="diverged")
    loss = 3 - 0.3 * settings.get("good", 0) + 0.3 * settings.get("bad", 0)
    loss += random.Random(f"{trial.contestant.digest} {trial.seed}").gauss(0, 0.002)
    return RunResult(loss, (0, trial.steps), (5.5, loss), 1.0)


def test_an_ablation_says_which_parts_help_hurt_or_do_nothing_with_one_alpha(invented, own, tmp_path, capsys):
    invented.run = of_parts
    whole = f"{own}:Parts:good=true,bad=true,idle=3"
    found = ablate(config(tmp_path, whole, ablate=True, difference=0.05, bound=0.2, budget="100runs"))
    assert {part: each.verdict.decision for part, each in found.items()} == {
        "good": "worse", "bad": "better", "idle": "no difference"
    }  # fmt: skip
    assert all(each.verdict.alpha == pytest.approx(0.8 * 0.05 / 3) for each in found.values())
    firsts = {each.pairs[0][0] for each in found.values()}
    assert len(firsts) == 1, "all parts are judged on the same seeds, against the same runs"
    made = invented.made
    words = ["--track", "synthetic", "--steps", "6", "--trials", "2", "--difference", "0.05", "--bound", "0.2"]
    assert main(["judge", "--ablate", whole, *words, "--ledger", str(tmp_path), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(row["part"], row["answer"]) for row in rows] == [
        ("good", "helps"), ("bad", "hurts"), ("idle", "no difference")
    ]  # fmt: skip
    assert invented.made == made
    assert rows[0]["sentence"].startswith(f"{whole} without good is worse than {whole} on synthetic")


def test_a_part_without_which_nothing_trains_is_needed_and_the_optimizers_own_values_are_no_parts(
    invented, own, tmp_path, capsys
):
    invented.run = of_parts
    words = ["--track", "synthetic", "--steps", "6", "--ledger", str(tmp_path)]
    assert main(["judge", "--ablate", f"{own}:Parts:good=true", *words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert (row["part"], row["answer"]) == ("good", "needed")
    assert "has no finite loss at any of its rates: lr" in row["sentence"]
    (part,) = ablate(config(tmp_path, "adana:kappa=0.85,omega=4,beta2=0.9", ablate=True))
    assert part == "beta2"


def test_every_track_at_one_rate_gives_the_geometric_mean_of_steps_saved_and_the_worst(invented, tmp_path, capsys):
    def run(self, trial):
        assert trial.lr == {"adamw": 8e-3, "adana": 2.8e-3}[trial.contestant.opt]
        fast = trial.contestant.opt == "adana" and trial.track != "images"
        losses = (5.0, 3.0, 2.0) if fast else (5.0, 4.0, 3.0)
        return RunResult(losses[-1], (0, trial.steps / 2, trial.steps), losses, 1.0)

    invented.run = run
    with pytest.raises(UserError, match="--budget 9runs: ended on track synthetic; ask again"):
        all_tracks(JudgeConfig(contestants=("adana",), all_tracks=True, ledger=tmp_path, budget="9runs"))
    words = ["judge", "--all-tracks", "adana", "--ledger", str(tmp_path), "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["factor"] == pytest.approx(2 ** ((len(TRACKS) - 1) / len(TRACKS)), abs=1e-4)
    assert (answer["worst"], answer["command"]) == ("images", "danalab judge --all-tracks adana")
    assert answer["tracks"][0]["factors"] == [2.0] * len(SEEDS)
    assert invented.made == 2 * len(SEEDS) * len(TRACKS), "what the first call made was not made again"
    (row,) = map(json.loads, (tmp_path / "all-tracks.jsonl").read_text().splitlines())
    assert row["tracks"] == answer["tracks"]
    invented.failures = {}
    invented.run = lambda self, trial: RunResult(None, failure="x") if trial.seed == 1 else run(self, trial)
    assert main([*words[:3], "--ledger", str(tmp_path / "failing"), "--steps", "64"]) == 0, "neither has a loss"


def test_a_run_without_a_loss_is_as_slow_as_its_length_allows():
    done, failed = RunResult(1.0, (0, 100), (2.0, 1.0)), RunResult(None, failure="diverged")
    assert math.exp(log_speed(done, failed)) == pytest.approx(0.01)
    assert math.exp(log_speed(failed, done)) == pytest.approx(100)
    assert log_speed(failed, failed) == 0.0


def test_two_judgements_of_one_question_at_a_time_agree(invented, tmp_path):
    context = multiprocessing.get_context("fork")
    asked = config(tmp_path, "adamw", "sgd")
    both = [context.Process(target=judge, args=(asked,)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    verdicts = Ledger(tmp_path).verdicts()  # one, where the other judgement began after its end
    assert 1 <= len(verdicts) <= 2
    assert len({(each["effect"], each["low"], each["pairs"]) for each in verdicts}) == 1


def test_contestants_are_names_settings_files_and_addresses(own, tmp_path):
    assert read_contestant("adana").settings == ()
    assert dict(read_contestant("adamw:betas=0.9,0.99,eps=1e-6").settings) == {"betas": (0.9, 0.99), "eps": 1e-6}
    file = tmp_path / "side.yaml"
    file.write_text("{opt: adana, kappa: 0.8}\n")
    assert read_contestant(str(file)).digest == read_contestant("adana:kappa=0.8").digest
    before = read_contestant(f"{own}:Signs:scale=2")
    assert dict(before.settings) == {"scale": 2.0}
    assert before.spec.name == f"{own}:Signs"
    aged = read_contestant("dana-muon:age=follow(8,60,1,8),by_kind=head:lr_factor=0.1")
    assert dict(aged.settings) == {"age": "follow(8,60,1,8)", "by_kind": {"head": {"lr_factor": 0.1}}}
    own.write_text(own.read_text() + "\n# changed\n")
    assert read_contestant(f"{own}:Signs:scale=2").digest != before.digest, "changed code is another contestant"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adamw"], "name a baseline and at least one contender"),
        (["adamw", "adanna"], "did you mean 'adana'"),
        (["adamw", "adana:kapa=0.8"], "did you mean 'kappa'"),
        (["adamw", "adamw"], "the same optimizer with the same settings"),
        (["adamw", "absent.py:Mine"], "there is no such file"),
        (["adamw", "absent_module:Mine"], "no module 'absent_module'"),
        (["adamw", "adana", "--track", "chars"], "did you mean 'char'"),
        (["adamw", "adana", "--budget", "ten"], "is a time such as 10m"),
        (["adamw", "adana", "--alpha", "1"], "--alpha 1: is out of range"),
        (["adamw", "adana", "--difference", "0"], "--difference 0: is out of range"),
        (["adamw", "adana", "--trials", "0"], "--trials 0"),
        (["adamw", "adana", "--data", "absent"], "absent"),
        (["--ablate", "adana"], "nothing can be left out"),
        (["--ablate", "adana:kappa=0.85,omega=4"], "nothing can be left out"),
        (["--ablate", "adamw", "adana:kappa=0.8"], "--ablate: 2 contestants are given; it must be one"),
        (["--all-tracks"], "--all-tracks: 0 contestants are given; it must be one"),
        (["--all-tracks", "--ablate", "adana"], "exclude each other"),
        (["--all-tracks", "adana", "--track", "images"], "leave --track and --data out"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    assert main(["judge", *words, "--ledger", str(tmp_path / "ledger")]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "ledger").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TRACKS)
def test_a_track_gives_the_same_weights_and_data_to_one_seed(name):
    first, second, other = (get_track(name).make(seed) for seed in (3, 3, 4))
    losses = [[float(task.loss().detach()) for _ in range(2)] for task in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]
    assert first.measure() == second.measure()

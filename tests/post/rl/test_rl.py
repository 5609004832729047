"""`danalab rl`: what is logged, what ends in one line, exact resume, ranks, and a bandit that every loss solves."""

import json
import math
import shutil
import signal
from dataclasses import fields, replace

import pytest
import torch

from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation
from danalab.cli.app import main
from danalab.data.tokenizers import ByteTokenizer
from danalab.errors import UserError
from danalab.post.policy_losses import OBJECTIVES
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.trainer import run_training
from distributed.ranks import run_ranks
from e2e.disturbed import everything, rows, train_in_child
from e2e.test_resume_ranks import hit


def test_a_run_logs_rewards_lengths_and_the_mismatch_of_engine_and_trainer(rl):
    outcome = run_training(rl())
    run = open_run(outcome.folder)
    metrics = run.metrics()
    assert (outcome.status, run.config["stage"], len(metrics)) == ("finished", "rl", 6)
    for row in metrics:
        assert row["train/mismatch"] < 2e-6
        assert 0 <= row["rl/reward"] <= 1
        assert 1 <= row["rl/answer_length"] <= 6
        assert row["train/clip_share"] == 0  # one update for each batch: the ratio is 1
        assert 0 < row["train/entropy"] < math.log(320)
        assert row["rl/reward_std"] == pytest.approx((row["rl/reward"] * (1 - row["rl/reward"])) ** 0.5)
    assert [row["step"] for row in metrics if "task/arithmetic" in row] == [3, 6]
    assert run.config["dataset"]["path"] == "arithmetic:max=9"
    assert run.tokenizer.name == "bytes"


def test_a_killed_run_continues_bitwise(rl, tmp_path):
    given = {"policy_loss": "gspo", "kl": 0.1, "advantage_std": True, "temperature": 0.9, "opt": "adana"}
    assert train_in_child(rl(**given))
    killed = rl(**given, run_dir=tmp_path / "killed")
    assert [train_in_child(killed, before=lambda at=at: hit(signal.SIGKILL, at)) for at in (3, 5, 10_000)] == [
        False, False, True,
    ]  # fmt: skip
    found, expected = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / "rl")
    assert rows(found) == rows(expected)
    ours, theirs = everything(found, 6), everything(expected, 6)
    assert [name for name in theirs if not ours[name].equal(theirs[name])] == []


@pytest.mark.slow
def test_the_reference_of_the_penalty_is_the_checkpoint_that_the_run_started_from(rl, tmp_path, base):
    """The base run goes on while the stage waits."""
    shutil.copytree(base, tmp_path / "base")
    given = {"run": tmp_path / "base", "kl": 0.1}
    whole = run_training(rl(**given))
    run_training(rl(**given, run_dir=tmp_path / "parts", iterations_to_run=3))
    _go_on(tmp_path / "base")
    assert run_training(rl(**given, run_dir=tmp_path / "parts")).status == "finished"
    assert rows(RunFolder(tmp_path / "parts")) == rows(RunFolder(whole.folder))
    assert (tmp_path / "parts/base").is_dir()


def _go_on(folder):
    config = TrainConfig(**{
        name: value for name, value in open_run(folder).config["config"].items()
        if name in {field.name for field in fields(TrainConfig)}
    })  # fmt: skip
    train(replace(config, run_dir=folder, extend_to=4))


def _train(rank, size, config):
    return run_training(config).status


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddp", "zero"])
def test_two_ranks_draw_the_answers_of_one_and_one_rank_continues(rl, tmp_path, backend):
    """The first steps on two ranks, the last ones on one: rewards and lengths are those of one rank all along."""
    run_training(rl(batch_size=1))
    part = rl(run_dir=tmp_path / "two", distributed_backend=backend, batch_size=1, iterations_to_run=3)
    assert run_ranks(_train, 2, part) == ["stopped"] * 2
    assert run_training(rl(run_dir=tmp_path / "two", batch_size=1)).status == "finished"
    one, two = (open_run(tmp_path / name).metrics() for name in ("rl", "two"))
    for ours, theirs in zip(two, one, strict=True):
        for name in (
            "rl/reward",
            "rl/answer_length",
            "rl/groups_without_signal",
            "train/loss",
            "grad_norm",
            "tokens",
        ):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name


def test_groups_without_signal_make_no_update_and_are_counted(rl, tmp_path):
    (tmp_path / "same.py").write_text("def reward(problem, answer):\n    return 0.1\n")
    config = rl(reward=str(tmp_path / "same.py"), iterations=3, opt="adamw")
    outcome = run_training(config)
    metrics = open_run(outcome.folder).metrics()
    assert [row["rl/groups_without_signal"] for row in metrics] == [1.0] * 3
    assert [row["rl/steps_without_signal"] for row in metrics] == [1.0, 2.0, 3.0]
    assert [row["update_norm"] for row in metrics] == [0.0] * 3
    assert outcome.summary["skipped"] == 0
    before, after = (
        everything(RunFolder(path), step) for path, step in ((config.init_from, 2), (outcome.folder, 3))
    )
    for name in before:
        if name.startswith("model"):
            assert before[name].equal(after[name])


def test_truncated_answers_are_masked_on_request(rl, tmp_path):
    """One token an answer: all of these are cut off, some of them with a reward, and none of them counts."""
    trained = run_training(
        rl(max_answer=1, mask_truncated=True, iterations=1, data_seed=3, run_dir=tmp_path / "masked")
    )
    (row,) = open_run(trained.folder).metrics()
    assert row["rl/truncated"] == 1
    assert 0 < row["rl/reward"] < 1
    assert row["update_norm"] == 0


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in OBJECTIVES if name != "dapo"]


@pytest.mark.parametrize("name", ["dapo", *OTHERS])
def test_a_bandit_is_solved(name, rl, tmp_path):
    """Arms are bytes, and ten of them pay: the digits. In the end nearly all draws are digits."""
    (tmp_path / "q.jsonl").write_text('{"question": "?", "answer": "7"}\n')
    (tmp_path / "arms.py").write_text("def reward(problem, answer):\n    return float(answer.isdigit())\n")
    outcome = run_training(
        rl(
            task=(str(tmp_path / "q.jsonl"),), reward=str(tmp_path / "arms.py"), policy_loss=name,
            max_answer=1, problems=1, samples=64, eval_problems=0, iterations=40, lr=1e-2, scheduler="none",
            ckpt_interval=0, rollout_batch=64,
        )
    )  # fmt: skip
    first, last = (open_run(outcome.folder).metrics()[i]["rl/reward"] for i in (0, -1))
    assert first < 0.3
    assert last > 0.9
    chat = ChatFormat(ByteTokenizer())
    model = open_run(outcome.folder).load_model().model
    with torch.no_grad():
        logits = model(torch.tensor([chat.render_prompt(Conversation.ask("?"))]))[0, -1, : chat.n_ids]
    assert float(logits.softmax(-1)[chat.tokenizer.encode("0123456789")].sum()) > 0.9


def test_problems_that_fill_the_context_are_left_out_and_counted(rl, tmp_path):
    lines = [{"question": "x" * size, "answer": "1"} for size in (3, 100)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = str(tmp_path / "q.jsonl")
    outcome = run_training(rl(task=(task,), iterations=2, eval_problems=0))
    assert 0 < sum(row["rl/problems_too_long"] for row in open_run(outcome.folder).metrics()) < 8
    (tmp_path / "q.jsonl").write_text(json.dumps(lines[1]) + "\n")
    with pytest.raises(UserError, match="leaves space for an answer"):
        run_training(rl(task=(task,), run_dir=tmp_path / "long", eval_problems=0))


def refused(capsys, *words):
    assert main(["rl", *map(str, words)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("danalab: error")]
    assert len(lines) == 1
    return lines[0]


def test_bad_input_is_one_line(base, tmp_path, capsys):
    start = ("--run", base, "--run-dir", tmp_path / "rl", "--iterations", 2, "--max-answer", 4)
    again = ("--run", base, "--run-dir", tmp_path / "again", "--iterations", 2, "--max-answer", 4)
    task = ("--task", "arithmetic")
    assert "no task" in refused(capsys, *start)
    assert "unknown task 'algebra'" in refused(capsys, *start, "--task", "algebra")
    assert "--samples 1: must be at least 2" in refused(capsys, *start, *task, "--samples", 1)
    assert "--policy-loss grpo" in refused(capsys, *start, *task, "--policy-loss", "grpo")
    assert "leave it out" in refused(capsys, *start, *task, "--global-batch", 4)
    assert "unknown reward 'nmber'" in refused(capsys, *start, *task, "--reward", "nmber")
    assert "no such Python file" in refused(capsys, *start, *task, "--reward", tmp_path / "absent.py")
    for words in (["fsdp"], ["fsdp", "--tp-size", "2"], ["diloco"], ["ddp", "--expert-parallel"]):
        what = words[-1] if len(words) == 2 else words[0]
        whole = f"not with {what}: each rank samples from a whole model"
        assert whole in refused(capsys, *start, *task, "--distributed-backend", *words)
    assert "--tp-size 2: only with --distributed-backend fsdp" in refused(
        capsys, *start, *task, "--tp-size", 2
    )
    assert "--kl -1" in refused(capsys, *start, *task, "--kl=-1")
    (tmp_path / "raises.py").write_text("def reward(problem, answer):\n    raise ValueError('no')\n")
    assert "ValueError: no" in refused(capsys, *start, *task, "--reward", tmp_path / "raises.py")
    (tmp_path / "nan.py").write_text("def reward(problem, answer):\n    return float('nan')\n")
    assert "returned nan" in refused(capsys, *again, *task, "--reward", tmp_path / "nan.py")
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    assert 'line 1: the field "answer" is missing' in refused(
        capsys, *start, "--task", tmp_path / "tasks.jsonl"
    )


def test_a_folder_of_another_stage_or_other_tasks_is_refused(rl, base, tmp_path, low_bytes):
    with pytest.raises(UserError, match="run of pretraining, not of rl"):
        run_training(replace(rl(), run_dir=base))
    run_training(rl(iterations=1))
    with pytest.raises(UserError, match="data"):
        run_training(rl(iterations=1, task=("arithmetic:max=8",)))

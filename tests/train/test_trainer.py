"""Whole tiny runs in this process: what is written, how runs end, what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.train import train
from danalab.train import trainer as trainer_module
from danalab.train.checkpoint import store as store_module
from danalab.train.config.resolve import resolve
from danalab.train.evaluation import ValidationLoss, ValidationResult
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.step.finite_guard import NonFiniteError
from danalab.train.trainer import Trainer, run_training

TIMES = {"time", "tokens_per_second", "seconds_per_step", "memory_gib", "data_wait", "save_wait", "mfu"}


def rows(folder):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in open_run(folder).metrics()]


def weights(folder, step=None):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model(step).model.parameters()])


def spoil_at(monkeypatch, *steps):
    """Make the gradient of one weight not a number at these steps (1-based)."""
    original = Trainer

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        weight = trainer.model.get_parameter("blocks.1.attention_norm.weight")
        weight.register_hook(lambda g: g * float("nan") if trainer.step + 1 in steps else g)
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)


# ---- what is written ----


def test_a_run_is_a_folder_with_everything(tiny):
    folder = train(tiny())
    run = open_run(folder)
    assert [row["step"] for row in run.metrics()] == [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    last = run.metrics()[-1]
    assert {
        "tokens",
        "flops",
        "time",
        "train/loss",
        "val/loss",
        "val/bpb",
        "lr",
        "grad_norm",
        "update_norm",
    } <= set(last)
    assert {
        "tokens_per_second",
        "memory_gib",
        "data_wait",
        "optim/beta",
        "optim/alpha",
        "optim/lambda",
    } <= set(last)
    assert last["tokens"] == 20 * 4 * 16
    assert last["optim/t"] == 20
    assert last["train/loss"] < run.metrics()[0]["train/loss"]
    assert run.config["config"]["lr"] == 3e-3
    assert run.config["params"] == sum(p.numel() for p in run.load_model().model.parameters())
    assert run.summary is not None
    assert run.summary["status"] == "finished"
    assert run.tokenizer.decode(run.tokenizer.encode("the cat")) == "the cat"
    assert run.folder.store.steps() == [15, 20]


@pytest.mark.slow
@pytest.mark.parametrize(
    "opt",
    [
        *(pytest.param(opt, marks=pytest.mark.slow) for opt in ("adamw", "adamw-decaying-wd", "adana")),
        "dana-star-mk4",
    ],
)
def test_every_optimizer_resumes_bitwise(tiny, tmp_path, opt):
    whole = train(tiny(opt=opt, run_dir=tmp_path / "whole"))
    config = tiny(opt=opt, run_dir=tmp_path / "parts", iterations_to_run=7)
    outcomes = [run_training(config) for _ in range(3)]
    assert [outcome.status for outcome in outcomes] == ["stopped", "stopped", "finished"]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    assert torch.equal(weights(tmp_path / "parts"), weights(whole))
    kept = rows(tmp_path / "parts")
    assert kept == rows(whole)


def test_a_finished_run_is_left_alone(tiny):
    folder = train(tiny())
    before = (folder / "metrics.jsonl").read_bytes(), (folder / "summary.json").read_bytes()
    assert run_training(tiny()).status == "finished"
    assert before == ((folder / "metrics.jsonl").read_bytes(), (folder / "summary.json").read_bytes())


def test_micro_batch_and_accumulation_leave_the_run_what_it_was(tiny, tmp_path):
    whole = train(tiny(run_dir=tmp_path / "whole"))
    train(tiny(run_dir=tmp_path / "parts", iterations_to_run=10))
    train(tiny(run_dir=tmp_path / "parts", batch_size=1, acc_steps=4))
    found, expected = rows(tmp_path / "parts")[-1], rows(whole)[-1]
    assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-5)
    assert found["val/loss"] == pytest.approx(expected["val/loss"], rel=1e-5)


def test_extending_goes_on_with_weights_clocks_and_rows(tiny):
    folder = train(tiny())
    first = rows(folder)
    train(tiny(extend_to=30))
    run = open_run(folder)
    assert rows(folder)[: len(first)] == first
    assert run.metrics()[-1]["step"] == 30
    assert run.metrics()[-1]["optim/t"] == 30
    assert run_training(tiny()).summary["step"] == 30


@pytest.mark.slow
def test_an_extended_run_is_the_longer_run_with_a_constant_tail(tiny, tmp_path):
    settings = {"weight_decay": 0.01, "wd_ts": 5.0, "warmup_steps": 2, "scheduler": "cos_inf"}
    train(tiny(run_dir=tmp_path / "parts", iterations=10, **settings))
    train(tiny(run_dir=tmp_path / "parts", iterations=10, extend_to=16, **settings))
    train(tiny(run_dir=tmp_path / "whole", iterations=16, cos_inf_steps=6, **settings))
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


# ---- ways of ending ----


def test_a_run_that_is_refused_leaves_no_folder(tiny, tmp_path):
    with pytest.raises(UserError, match="betas"):
        run_training(tiny(opt="adamw", optimizer_settings={"betas": 0.9}, run_dir=tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_update(tiny, monkeypatch):
    spoil_at(monkeypatch, 8)
    outcome = run_training(tiny())
    assert (outcome.status, outcome.exit_code) == ("nonfinite", 3)
    seen = json.loads((outcome.folder / "nonfinite.json").read_text())
    assert seen["step"] == 8
    assert seen["parameters"] == ["blocks.1.attention_norm.weight"]
    assert len(seen["windows"]) == 4
    assert open_run(outcome.folder).folder.store.steps() == [5]
    assert torch.isfinite(weights(outcome.folder)).all()
    with pytest.raises(NonFiniteError):
        train(tiny())


def test_a_summary_is_json_whatever_the_validation_loss_is(tiny, monkeypatch):
    monkeypatch.setattr(ValidationLoss, "spread", lambda *_: ValidationResult(float("nan"), float("inf"), 5))

    def refuse(word):
        raise AssertionError(word)

    folder = train(tiny(iterations=2))
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    known = {key for key, value in summary.items() if value is not None}
    assert {key for key in known if key.startswith("val/")} == {"val/tokens", "val/share"}


def test_skipping_advances_neither_weights_nor_clocks(tiny, monkeypatch):
    spoil_at(monkeypatch, 8, 9)
    outcome = run_training(tiny(on_nonfinite="skip"))
    assert outcome.status == "finished"
    assert outcome.summary["skipped"] == 2
    last = open_run(outcome.folder).metrics()[-1]
    assert last["step"] == 20
    assert last["optim/t"] == 18
    assert torch.isfinite(weights(outcome.folder)).all()


def test_skipping_gives_up_after_ten_in_a_row(tiny, monkeypatch):
    spoil_at(monkeypatch, *range(6, 20))
    outcome = run_training(tiny(on_nonfinite="skip"))
    assert outcome.status == "nonfinite"
    assert json.loads((outcome.folder / "nonfinite.json").read_text())["step"] == 15


def test_sigterm_checkpoints_the_current_step_and_asks_for_requeue(tiny, tmp_path, monkeypatch):
    whole = train(tiny(run_dir=tmp_path / "whole"))
    original = trainer_module.Trainer

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        schedule = trainer.schedule

        def interrupting(step):
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            return schedule(step)

        trainer.schedule = interrupting
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)
    outcome = run_training(tiny())
    assert (outcome.status, outcome.exit_code, outcome.summary["step"]) == ("interrupted", 85, 8)
    monkeypatch.undo()
    train(tiny())
    assert torch.equal(weights(outcome.folder), weights(whole))
    assert rows(outcome.folder) == rows(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_a_save_checkpoints_the_step_that_training_is_at(tiny, monkeypatch, number):
    original = trainer_module.Trainer

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        save = trainer.saver._write

        def interrupted(tensors, folder):
            if folder.name == "step-00000010":
                os.kill(os.getpid(), number)
            return save(tensors, folder)

        trainer.saver._write = interrupted
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)
    outcome = run_training(tiny())
    assert (outcome.status, outcome.exit_code) == ("interrupted", 85)
    assert 10 <= outcome.summary["step"] < 20
    assert open_run(outcome.folder).folder.store.steps()[-1] == outcome.summary["step"]


@pytest.mark.slow
def test_a_local_disk_on_the_way_changes_nothing(tiny, tmp_path):
    (tmp_path / "disk").mkdir()
    straight = train(tiny(run_dir=tmp_path / "straight"))
    folder = train(tiny(local_ckpt_dir=tmp_path / "disk"))
    assert torch.equal(weights(folder), weights(straight))
    assert [path.name for path in (tmp_path / "disk").rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_an_evaluation_that_is_interrupted_is_made_up_for(tiny, tmp_path, monkeypatch):
    whole = train(tiny(run_dir=tmp_path / "whole"))
    original = trainer_module.Trainer

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        (evaluator,) = trainer.stage.evaluators
        spread = evaluator.spread

        def interrupted(model, count, should_stop):
            os.kill(os.getpid(), signal.SIGTERM)
            return spread(model, count, should_stop)

        evaluator.spread = interrupted
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)
    outcome = run_training(tiny())
    assert outcome.summary["step"] == 10
    assert rows(outcome.folder)[-1]["step"] == 8
    monkeypatch.undo()
    train(tiny())
    assert rows(outcome.folder) == rows(whole)


# ---- what is refused, what is fallen back from ----


def test_another_configuration_is_refused_with_the_settings_that_differ(tiny):
    train(tiny())
    with pytest.raises(UserError, match=r"--lr: 0.003 there, 0.01 here; --seed: 0 there, 3 here"):
        train(tiny(lr=0.01, seed=3))


def test_no_auto_resume_refuses_a_folder_with_checkpoints(tiny):
    train(tiny(iterations_to_run=5))
    with pytest.raises(UserError, match="--no-auto-resume"):
        train(tiny(auto_resume=False))


def test_a_damaged_checkpoint_is_passed_over_loudly(tiny, tmp_path, caplog):
    whole = train(tiny(run_dir=tmp_path / "whole"))
    folder = train(tiny(iterations_to_run=12))
    assert RunFolder(folder).store.steps() == [10, 12]
    tensors = next((folder / "checkpoints" / "step-00000012").glob("*.distcp"))
    content = bytearray(tensors.read_bytes())
    content[-100] ^= 4
    tensors.write_bytes(content)
    train(tiny())
    assert "passed over" in caplog.text
    assert tensors.name in caplog.text
    assert torch.equal(weights(folder), weights(whole))
    assert rows(folder) == rows(whole)


def test_when_all_are_damaged_nothing_is_started_anew(tiny):
    folder = train(tiny(iterations_to_run=5))
    (folder / "checkpoints" / "step-00000005" / "meta.json").write_text("{")
    with pytest.raises(UserError, match="no checkpoint can be used"):
        train(tiny())


def test_going_back_takes_another_folder(tiny):
    folder = train(tiny(keep_every=5))
    with pytest.raises(UserError, match="the run is at step 20; to go back, take another --run-dir"):
        train(tiny(resume_from=folder / "checkpoints" / "step-00000010"))


@pytest.mark.slow
def test_a_run_that_began_from_another_needs_it_no_more(tiny, tmp_path):
    first = train(tiny(run_dir=tmp_path / "first", iterations_to_run=5))
    fork = tiny(run_dir=tmp_path / "fork", lr=1e-3, resume_from=first, iterations_to_run=8)
    assert run_training(fork).summary["step"] == 13
    shutil.rmtree(first)
    assert run_training(fork).summary["step"] == 20


@pytest.mark.slow
def test_resume_from_another_run_forks_it(tiny, tmp_path):
    first = train(tiny(keep_every=5, run_dir=tmp_path / "first"))
    fork = train(
        tiny(lr=1e-3, run_dir=tmp_path / "fork", resume_from=first / "checkpoints" / "step-00000010")
    )
    assert rows(fork)[:6] == rows(first)[:6]
    assert rows(fork)[-1]["step"] == 20
    assert not torch.equal(weights(fork), weights(first))


@pytest.mark.slow
def test_another_run_starts_from_a_checkpoint(tiny, tmp_path):
    folder = train(tiny(keep_every=5))
    fork = train(tiny(run_dir=tmp_path / "fork", resume_from=folder / "checkpoints" / "step-00000010"))
    assert rows(fork)[0] == rows(folder)[0]


def test_resume_from_another_model_is_refused(tiny, tmp_path):
    first = train(tiny(run_dir=tmp_path / "first", iterations_to_run=2))
    with pytest.raises(UserError, match=r"another model|other parameters"):
        train(tiny(run_dir=tmp_path / "second", n_layers=1, resume_from=first))
    assert not (tmp_path / "second" / "metrics.jsonl").exists()


def test_resume_from_another_optimizer_is_refused_in_one_sentence(tiny, tmp_path):
    first = train(tiny(run_dir=tmp_path / "first", iterations_to_run=2))
    with pytest.raises(UserError, match=r"step-00000002: is a run of adana, not of adamw"):
        train(tiny(run_dir=tmp_path / "second", opt="adamw", resume_from=first))


def test_resume_from_a_step_beyond_the_run_is_refused(tiny, tmp_path):
    first = train(tiny(run_dir=tmp_path / "first", iterations=4))
    with pytest.raises(UserError, match=r"step-00000004: the run here ends at step 3, before it"):
        train(tiny(run_dir=tmp_path / "second", iterations=3, resume_from=first))


def test_resume_from_a_step_that_is_not_there_says_so(tiny, tmp_path):
    with pytest.raises(UserError, match="neither a checkpoint nor a run folder with one"):
        train(tiny(resume_from=tmp_path / "other" / "step-00000099"))


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_neither_the_run_nor_a_row(tiny, tmp_path, monkeypatch, caplog):
    whole = train(tiny(run_dir=tmp_path / "whole"))
    original = trainer_module.Trainer

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        schedule, files = trainer.schedule, []

        def filling(step):
            metrics = trainer.logbook._metrics
            if step == 7:
                files.append(metrics._file)
                metrics._file = Full()
            if step == 12:
                trainer.saver._finish()
                assert trainer.saver.committed == 5  # not without its rows
                metrics._file = files.pop()
            return schedule(step)

        trainer.schedule = filling
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)
    folder = train(tiny())
    assert "checkpoint of step 10" in caplog.text
    assert rows(folder) == rows(whole)
    assert torch.equal(weights(folder), weights(whole))


def test_what_a_checkpoint_says_is_not_changed_by_training_that_goes_on(tiny, tmp_path, monkeypatch):
    original = trainer_module.Trainer

    def build(*args, **kwargs):
        trainer = original(*args, **kwargs)
        write = trainer.saver._write

        def late(tensors, folder):
            trainer.logbook.latest["train/loss"] = -1.0  # from the future
            write(tensors, folder)

        trainer.saver._write = late
        return trainer

    monkeypatch.setattr(trainer_module, "Trainer", build)
    folder = train(tiny(iterations_to_run=10))
    meta = json.loads((RunFolder(folder).store.path(10) / "meta.json").read_text())
    assert meta["latest"]["train/loss"] == rows(folder)[-1]["train/loss"]


def test_only_the_checkpoint_that_is_gone_on_from_is_verified(tiny, monkeypatch):
    train(tiny(keep_every=5, iterations_to_run=15))
    seen = []
    why = store_module.why_unusable
    monkeypatch.setattr(store_module, "why_unusable", lambda path: seen.append(path.name) or why(path))
    train(tiny(keep_every=5))
    assert seen == ["step-00000015"]


def test_same_seed_same_weights_and_another_seed_others(tiny, data):
    def first_weights(config):
        resolved = resolve(config, open_dataset(data))
        folder = RunFolder(resolved.run_dir)
        folder.path.mkdir(exist_ok=True)
        trainer = Trainer(resolved, open_dataset(data), folder)
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    assert torch.equal(first_weights(tiny()), first_weights(tiny()))
    assert not torch.equal(first_weights(tiny()), first_weights(replace(tiny(), seed=1)))


def test_a_signal_while_the_run_is_still_being_set_up_stops_it_in_order(tiny, monkeypatch):
    def build(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return Trainer(*args, **kwargs)

    monkeypatch.setattr(trainer_module, "Trainer", build)
    outcome = run_training(tiny())
    assert (outcome.status, outcome.exit_code, outcome.summary["step"]) == ("interrupted", 85, 0)
    monkeypatch.setattr(trainer_module, "Trainer", Trainer)
    assert run_training(tiny()).status == "finished"

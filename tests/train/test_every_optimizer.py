"""The trainer with every optimizer: it learns, goes on exactly where it was stopped, and skips steps cleanly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from danalab.data import open_dataset
from danalab.errors import UserError
from danalab.files import write_json
from danalab.optim import list_optimizers
from danalab.train import train
from danalab.train.config.resolve import resolve
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.run.resume import choose_resume_point, run_record
from danalab.train.step.loss import TrainingBatch
from danalab.train.trainer import Trainer
from optimizer_kinds import others_slow

EVERY = list_optimizers()
STEPS, STOP = 14, 6
# At a batch of 4 x 16 the automatic rates of some are far from their best; what matters here is that they learn at all.
# RAdam: of 14 steps the first five are momentum alone, and the rectification makes the others 3% to 7% of AdamW's.
RATES = {
    "sgd": 1.0, "sf-sgd": 10.0, "prodigy": 1.0, "dana": 0.3, "muon": 0.02, "adafactor": 0.05, "lamb": 0.05, "radam": 0.1
}  # fmt: skip
SETTINGS = {"prodigy": {"d0": 1e-3}, "soap": {"precondition_frequency": 4}, "sophia": {"hessian_interval": 4}}
SCHEDULES = ["cos_inf", "wsd", "none", "powerlaw", "linear", "cos"]


def config(tiny, opt, **given):
    settings = {
        "opt": opt,
        "lr": RATES.get(opt, 3e-3),
        "optimizer_settings": SETTINGS.get(opt, {}),
        "n_layers": 1,
        "iterations": STEPS,
        "warmup_steps": 2,
        "eval_interval": 4,
        "eval_batches": 1,
        "ckpt_interval": 0,
        "log_interval": 1,
        "scheduler": SCHEDULES[EVERY.index(opt) % len(SCHEDULES)],
        "async_checkpoint": False,
        "on_nonfinite": "skip",
    }
    return tiny(**{**settings, **given})


def state_of(trainer):
    """Everything that a step may change, by name."""
    found = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for name, p in trainer.model.named_parameters():
        for key, value in trainer.driver.optimizer.state.get(p, {}).items():
            found[f"{name}.{key}"] = value.clone() if isinstance(value, torch.Tensor) else value
    for number, group in enumerate(trainer.driver.optimizer.param_groups):
        found |= {f"{number}.{key}": value for key, value in group.items() if key not in ("params", "lr")}
    return found


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, torch.as_tensor(right))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.sample(2)
@pytest.mark.parametrize("opt", others_slow(EVERY))
def test_it_learns_and_a_run_in_two_parts_is_bitwise_the_run_in_one(tiny, tmp_path, opt):
    whole = open_run(train(config(tiny, opt, run_dir=tmp_path / "whole")))
    train(config(tiny, opt, run_dir=tmp_path / "parts", iterations_to_run=STOP))
    parts = open_run(train(config(tiny, opt, run_dir=tmp_path / "parts", eval_interval=4, log_interval=3)))
    losses = [row["train/loss"] for row in whole.metrics()]
    assert len(losses) == STEPS
    assert sum(losses[-3:]) / 3 < losses[0] - 0.1
    at = {row["step"]: row for row in whole.metrics()}
    for row in parts.metrics():
        for key in ("train/loss", "val/loss", "grad_norm", "update_norm", "lr"):
            assert row.get(key) == at[row["step"]].get(key), (row["step"], key)
    pairs = zip(whole.load_model().model.parameters(), parts.load_model().model.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


def test_the_pages_own_optimizer_learns_at_the_rate_and_decay_of_its_class(tiny, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    file = tmp_path / "log_lion.py"
    file.write_text(page.partition("<!-- file: log_lion.py -->\n```python\n")[2].partition("```")[0])
    run = open_run(train(tiny(opt=f"{file}:LogLion", lr=None, iterations=40, log_interval=1)))
    made = run.config["config"]
    assert (made["lr"], made["weight_decay"], made["wd_ts"], made["decay_bound"]) == (1e-3, 1.0, 4, 1.0)
    losses = [row["train/loss"] for row in run.metrics()]
    assert sum(losses[-3:]) / 3 < losses[0] - 0.1


@pytest.mark.sample(3)
@pytest.mark.parametrize("opt", others_slow(EVERY))
def test_a_skipped_step_changes_nothing(tiny, opt):
    settings = config(tiny, opt)
    dataset = open_dataset(settings.data)
    resolved = resolve(settings, dataset)
    trainer = Trainer(resolved, dataset, RunFolder(resolved.run_dir))
    batches = dataset.batches(seed=1, global_batch=4, seq_len=16)
    for step in range(3):
        trainer._make_step(TrainingBatch(*batches[step]), logged=False)
    before = state_of(trainer)
    hook = trainer.model.get_parameter("final_norm.weight").register_hook(lambda g: g * float("nan"))
    result = trainer._make_step(TrainingBatch(*batches[3]), logged=False)
    hook.remove()
    assert not result.finite
    after = state_of(trainer)
    assert before.keys() == after.keys()
    assert [name for name, value in before.items() if not same(value, after[name])] == []
    trainer._make_step(TrainingBatch(*batches[4]), logged=False)
    assert any(not same(value, before[name]) for name, value in state_of(trainer).items())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("opt", "clock"), [("sf-adamw", "weight_sum"), ("prodigy", "d"), ("lion", "step"), ("adana", "t")]
)
def test_a_run_from_anothers_checkpoint_takes_its_clocks_and_keeps_its_own_settings(
    tiny, tmp_path, opt, clock
):
    first = config(tiny, opt, run_dir=tmp_path / "first", scheduler="none")
    origin = train(first)
    other = replace(
        first, run_dir=tmp_path / "second", lr=first.lr / 2, iterations=STEPS + 2, resume_from=origin
    )
    dataset = open_dataset(other.data)
    resolved = resolve(other, dataset)
    folder = RunFolder(resolved.run_dir)
    with folder.locked():
        resolved, source = choose_resume_point(resolved, dataset, folder)
        trainer = Trainer(resolved, dataset, folder)
        trainer.load(source)
    group = trainer.driver.optimizer.param_groups[0]
    assert group["peak_lr"] == first.lr / 2
    if clock == "t":
        assert trainer.driver.optimizer.coefficients()["t"] == STEPS
    elif clock == "step":
        assert group["step"] == STEPS
    else:
        fresh = Trainer(resolved, dataset, folder).driver.optimizer.param_groups[0]
        assert group[clock] > fresh[clock]
    trainer.driver.train()
    assert group.get("train_mode", True)


def test_another_setting_of_the_optimizer_is_another_run(tiny):
    train(config(tiny, "sophia", iterations_to_run=2))
    with pytest.raises(UserError, match="--set") as caught:
        train(config(tiny, "sophia", optimizer_settings={"hessian_interval": 4, "rho": 0.1}))
    assert "rho" in str(caught.value)


def test_a_schedule_free_run_is_sampled_and_evaluated_at_its_averages(tiny):
    settings = config(tiny, "sf-adamw", scheduler="wsd", fract_decay=0.0)
    dataset = open_dataset(settings.data)
    resolved = resolve(settings, dataset)
    folder = RunFolder(resolved.run_dir)
    with folder.locked():
        trainer = Trainer(resolved, dataset, folder)
        trainer.fit()
    trained = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    with trainer.driver.evaluating():
        averaged = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    write_json(folder.config_file, run_record(resolved, dataset, trainer.device))
    saved = torch.cat([p.detach().flatten() for p in open_run(folder.path).load_model().model.parameters()])
    assert torch.equal(saved, averaged)
    assert not torch.equal(saved, trained)

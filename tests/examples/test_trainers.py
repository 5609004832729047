"""What other trainers do to an optimizer: their schedules, wrappers, groups and checkpoints."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hf():
    return example("huggingface_trainer")


class Watch(transformers.TrainerCallback):
    """Notes what the optimizer used in each step, through accelerate's wrapper."""

    def __init__(self):
        self.used: list[dict[str, Any]] = []

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        inner = getattr(optimizer, "optimizer", optimizer)
        self.used.append({**inner.coefficients(), "peak": inner.param_groups[0]["peak_lr"]})


@pytest.mark.sample(1)
@pytest.mark.parametrize("own_schedule", [True, False], ids=["our schedule", "the Trainer's"])
def test_weight_decay_follows_the_schedule_under_the_trainer(hf, tmp_path, own_schedule):
    trainer = hf.trainer(str(tmp_path), steps=6, scheduler=own_schedule)
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    assert [row["t"] for row in watch.used] == [1, 2, 3, 4, 5, 6]
    assert {row["peak"] for row in watch.used} == {3e-3}
    for row in watch.used:
        assert row["schedule"] == pytest.approx(row["lr"] / 3e-3)
    if own_schedule:
        expected = hf.get_schedule("cos_inf", hf.STEPS, hf.warmup_steps(hf.STEPS))
        assert [row["schedule"] for row in watch.used] == pytest.approx([expected(i) for i in range(6)])
    else:  # linear to zero over the Trainer's own six steps
        assert [row["schedule"] for row in watch.used] == pytest.approx([1 - i / 6 for i in range(6)])


def test_a_warm_up_from_zero_still_counts_the_step(hf, tmp_path):
    trainer = hf.trainer(str(tmp_path), steps=3, scheduler=False)
    trainer.args.warmup_steps = 2
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    assert [row["t"] for row in watch.used] == [1, 2, 3]
    assert watch.used[0]["lr"] == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "opt",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("adana", "ademamix-decaying-wd")),
        "dana-star-mk4",
    ],
)
def test_a_trainer_checkpoint_resumes_bit_for_bit(hf, tmp_path, opt):
    def train(folder: Path, resume: str | None = None):
        trainer = hf.trainer(str(folder), steps=8, opt=opt)
        trainer.args.save_steps = 4
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train(tmp_path / "whole")
    resumed = train(tmp_path / "again", resume=str(tmp_path / "whole" / "checkpoint-4"))
    for trainer in (whole, resumed):
        assert {int(state["step"]) for state in trainer.optimizer.optimizer.state.values()} == {8}
    for name, p in whole.model.named_parameters():
        assert torch.equal(p, resumed.model.get_parameter(name)), name


def test_the_trainers_factory_sees_the_model_so_that_the_decay_stays(tmp_path):
    trainer = example("huggingface_factory").trainer(str(tmp_path), steps=2)
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    decayed, plain = trainer.optimizer.optimizer.param_groups
    assert decayed["weight_decay"] > 0 == plain["weight_decay"]
    assert trainer.model.transformer.wte.weight.shape in {p.shape for p in plain["params"]}
    assert [(row["t"], row["peak"]) for row in watch.used] == [(1, 3e-3), (2, 3e-3)]


# a warning of a class of Lightning's would be sent to the process that collects results, which imports it to read one
@pytest.mark.filterwarnings("ignore:You're resuming")
def test_lightning_advances_the_schedule_every_step_and_resumes(tmp_path):
    pytest.importorskip("lightning")
    module = example("lightning_module")
    module.L.seed_everything(0, verbose=False)
    net, trainer = module.NextByte(), module.trainer(steps=6)
    trainer.fit(net, module.windows())
    used = trainer.optimizers[0].coefficients()
    assert used["t"] == 6
    assert used["schedule"] == pytest.approx(module.get_schedule("cos_inf", module.STEPS, 4)(6))
    trainer.save_checkpoint(tmp_path / "six.ckpt", weights_only=False)

    again = module.trainer(steps=8)
    again.fit(module.NextByte(), module.windows(), ckpt_path=str(tmp_path / "six.ckpt"), weights_only=False)
    assert again.optimizers[0].coefficients()["t"] == 8
    assert again.optimizers[0].param_groups[0]["peak_lr"] == 3e-3

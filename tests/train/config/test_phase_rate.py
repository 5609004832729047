"""Phases, and nothing else, learn at a rate of their own, whatever the optimizer."""

from __future__ import annotations

import pytest
import torch

from danalab.models import ModelConfig, build_model
from danalab.optim import DistributedMuonAdamW, build_optimizer
from danalab.train import train
from danalab.train.job import run_training
from danalab.train.run.open import open_run
from danalab.train.step.optimizer_driver import OptimizerDriver

RUN = {"arch": "resonance", "n_heads": 4, "num_frequencies": 8, "opt": "adamw"}


def moved(make, factor, steps=1):
    """How far each parameter goes in a few steps, by its name; gradients are the same for any factor."""
    model = build_model(ModelConfig("resonance", 16, 1, 4, 4, 64, 61, 16))
    model.phase_lr_factor = factor
    optimizer = make(model)
    driver, draw = OptimizerDriver(optimizer), torch.Generator().manual_seed(0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(steps):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw)
        driver.set_rate(0.5**step)
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def is_phase(name):
    return name.endswith("weight.phi")


MAKERS = {
    name: lambda model, name=name: build_optimizer(name, model, lr=1e-2)
    for name in (
        "adamw",
        "adana",
        "dana-star-mk4",
        "auto-dana",
        "ademamix",
        "muon",
        "d-muon",
        "lion",
        "soap",
        "snoo",
    )
}
MAKERS["muon under zero"] = lambda model: DistributedMuonAdamW(model, lr=1e-2)
MAKERS["adana under zero"] = lambda model: DistributedMuonAdamW(model, "adana", lr=1e-2)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_phases_move_with_the_factor_and_nothing_else_does(make):
    usual, slow = moved(make, 1.0, steps=3), moved(make, 0.25, steps=3)
    assert sum(is_phase(name) for name in usual) == 1
    for name, way in usual.items():
        expected = 0.25 * way if is_phase(name) else way
        torch.testing.assert_close(slow[name], expected, rtol=1e-3, atol=1e-6)
        assert way.abs().max() > 0


def test_without_a_factor_the_groups_are_those_of_any_model():
    model = build_model(ModelConfig("resonance", 16, 1, 4, 4, 64, 61, 16))
    assert len(build_optimizer("adamw", model).param_groups) == 2
    model.phase_lr_factor = 0.1
    decayed, rest, phases = build_optimizer("adamw", model, lr=1e-2).param_groups
    assert (decayed["lr"], rest["lr"], phases["lr"]) == (1e-2, 1e-2, pytest.approx(1e-3))
    assert phases["weight_decay"] == 0
    assert [p is model.blocks[0].attention.bank.weight.phi for p in phases["params"]] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("opt", ["adamw", "dana-star-mk4"])
def test_a_run_with_a_factor_resumes_bitwise_and_is_another_run(tiny, tmp_path, opt):
    def weights(folder):
        return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])

    given = {**RUN, "opt": opt, "iterations": 6, "phase_lr_factor": 0.1}
    whole = train(tiny(**given, run_dir=tmp_path / "whole"))
    parts = tiny(**given, run_dir=tmp_path / "parts", iterations_to_run=4)
    assert [run_training(parts).status for _ in range(2)] == ["stopped", "finished"]
    assert torch.equal(weights(tmp_path / "parts"), weights(whole))
    usual = train(tiny(**{**given, "phase_lr_factor": 1.0}, run_dir=tmp_path / "usual"))
    assert not torch.equal(weights(usual), weights(whole))
    with pytest.raises(ValueError, match="--phase-lr-factor"):
        train(tiny(**{**given, "phase_lr_factor": 1.0}, run_dir=whole, extend_to=8))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arch": "enoki"}, "enoki has no phases"),
        ({**RUN, "num_frequencies": None, "mixer": "none"}, "resonance has no phases"),
        ({**RUN, "phase_lr_factor": 0.0}, "must be greater than 0"),
        ({**RUN, "phase_lr_factor": float("nan")}, "must be less than inf"),
    ],
)
def test_a_factor_that_cannot_be_meant_is_refused(tiny, given, message):
    with pytest.raises(ValueError, match=message):
        train(tiny(**{"phase_lr_factor": 0.1, **given}))

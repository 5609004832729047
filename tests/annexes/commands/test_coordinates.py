"""Activations keep their size over widths with a parametrization, and do not without; runs resume and refuse."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from danalab.train.config.resolve import resolve
from danalab.train.job import run_training
from danalab.train.run.open import open_run
from danalab.train.stage import stage_kind
from danalab_annexes.commands import check
from danalab_annexes.commands.preflight import check_coordinates

BASE = {"parametrization": "mup", "base_d_model": 16}


@pytest.mark.sample(1)
@pytest.mark.parametrize(("opt", "lr"), [("adamw", 0.03), ("adana", 0.01)])
def test_activations_are_flat_with_mup_and_not_without(tiny, opt, lr):
    given = {"opt": opt, "lr": lr, "seq_len": 16}
    flat = check_coordinates(tiny(**given, **BASE), (16, 32, 64))
    assert flat.is_flat, flat.ratios()
    assert list(flat.sizes) == ["block 1", "block 2", "logits"]
    assert not check_coordinates(tiny(**given), (16, 32, 64)).is_flat


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["enoki", "qwen3", "gpt"])
@pytest.mark.parametrize(("opt", "lr"), [("adamw", 0.003), ("adana", 0.001)])
def test_activations_are_flat_over_widths_of_32_to_512(tiny, arch, opt, lr):
    given = {"arch": arch, "opt": opt, "lr": lr, "seq_len": 16}
    for parametrization in ("mup", "completep"):
        config = tiny(**given, parametrization=parametrization, base_d_model=32)
        assert check_coordinates(config, (32, 64, 128, 256, 512)).is_flat
    assert not check_coordinates(tiny(**given), (32, 64, 128, 256, 512)).is_flat


@pytest.mark.slow  # of the import of matplotlib
def test_the_command_writes_a_figure_and_says_the_verdict(tiny, tmp_path, capsys):
    config = tiny(lr=0.03, **BASE)
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    figure = tmp_path / "check.svg"
    flags = check.Flags(**settings, coordinates=True, widths=(16, 32), figure=figure)
    assert check.run(flags) == 0
    assert "mup: flat within 2 x" in capsys.readouterr().out
    assert figure.read_text().count("block 1") == 1
    with pytest.raises(ValueError, match="it must end in"):
        check.run(dataclasses.replace(flags, figure=tmp_path / "check.txt"))


def test_widths_and_optimizers_without_a_rule_are_refused(tiny):
    for widths in ((32,), (32, 40), ()):
        with pytest.raises(ValueError, match="--widths"):
            check_coordinates(tiny(), widths)
    with pytest.raises(ValueError, match="--coordinates: muon does not"):
        check_coordinates(tiny(opt="muon"), (16, 32))


def plan_of(config):
    return resolve(config, stage_kind(config).open_data(config))


@pytest.mark.parametrize("opt", ["muon", "sgd", "lamb", "dana"])
def test_optimizers_whose_rule_is_unknown_are_refused(tiny, opt):
    with pytest.raises(ValueError, match=f"the rate of {opt} follows from width is not known"):
        plan_of(tiny(opt=opt, **BASE))


def test_an_automatic_rate_is_that_of_the_base_model(tiny):
    at = {"lr": None, "iterations": 100, "opt": "adamw", "n_layers": 2}
    base = plan_of(tiny(**at, d_model=2048, n_heads=16))
    wide = plan_of(tiny(**at, d_model=8192, n_heads=64, parametrization="mup", base_d_model=2048))
    assert wide.plan.lr == pytest.approx(base.plan.lr)
    assert "of the base model" in wide.plan.lr_source
    deep = {**at, "n_layers": 8, "parametrization": "completep", "base_d_model": 2048, "base_n_layers": 2}
    assert plan_of(tiny(**deep, d_model=8192, n_heads=64)).plan.lr == pytest.approx(base.plan.lr)
    assert plan_of(tiny(**at, d_model=8192, n_heads=64)).plan.lr < base.plan.lr / 2


@pytest.mark.parametrize("opt", ["adana", pytest.param("adamw", marks=pytest.mark.slow)])
def test_a_run_resumes_bitwise_and_logs_the_rate_of_the_run(tiny, tmp_path, opt):
    given = {"opt": opt, "iterations": 6, "parametrization": "completep", "base_d_model": 16, "base_n_layers": 1}
    for name, more in (("whole", {}), ("parts", {"iterations_to_run": 4})):
        config = tiny(**given, **more, run_dir=tmp_path / name, log_interval=1)
        while run_training(config).status != "finished":
            pass
    one, other = (open_run(tmp_path / name) for name in ("whole", "parts"))
    for p, q in zip(one.load_model().model.parameters(), other.load_model().model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert one.load_model().model.config.base_d_model == 16
    assert max(row["lr"] for row in one.metrics()) == pytest.approx(3e-3)

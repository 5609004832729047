"""The two dials of optimizers with two rules: rates and decays of matrices, and of other parameters."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from danalab.cli._shared.flags import parse
from danalab.errors import UserError
from danalab.optim import Muon, build_optimizer, list_optimizers, optimizer_spec
from danalab.experiments.cells import expand
from danalab.train.config.train_config import TrainConfig

pytest.importorskip("pytorch_optimizer")
HYBRIDS = [name for name in list_optimizers() if "aux_weight_decay" in optimizer_spec(name).settings]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 5, bias=False)
        self.lm_head = nn.Linear(5, 7, bias=False)


def after_two_steps(name, lr, **settings):
    """(matrix, embedding, head) after two steps on given gradients."""
    model = Net()
    optimizer = build_optimizer(name, model, lr=lr, **settings)
    for step in range(2):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + p.numel()))
        optimizer.step()
    return model.up.weight, model.embedding.weight, model.lm_head.weight


def test_every_optimizer_with_two_rules_has_both_dials():
    assert {"muon", "d-muon", "manau", "adamuon", "normuon"} <= set(HYBRIDS)
    for name in HYBRIDS:
        assert {"aux_lr", "aux_lr_factor", "aux_weight_decay"} <= set(optimizer_spec(name).settings)


@pytest.mark.parametrize("name", HYBRIDS)
def test_one_dial_moves_the_matrices_and_the_other_all_else(name):
    matrix, embedding, head = after_two_steps(name, 0.01, aux_lr=0.002)
    again = after_two_steps(name, 0.01, aux_lr=0.004)
    assert torch.equal(again[0], matrix)
    assert not torch.equal(again[1], embedding)
    assert not torch.equal(again[2], head)
    again = after_two_steps(name, 0.02, aux_lr=0.002)
    assert not torch.equal(again[0], matrix)
    assert torch.equal(again[1], embedding)
    assert torch.equal(again[2], head)
    relative = after_two_steps(name, 0.01, aux_lr_factor=0.2)
    torch.testing.assert_close(relative, (matrix, embedding, head), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_decay_of_heads_is_a_dial_of_its_own_and_embeddings_do_not_decay(name):
    plain = after_two_steps(name, 0.01, weight_decay=1.0, aux_weight_decay=0.0)
    decayed = after_two_steps(name, 0.01, weight_decay=1.0, aux_weight_decay=2.0)
    assert [torch.equal(p, q) for p, q in zip(plain, decayed, strict=True)] == [True, True, False]


def test_the_names_of_version_0_1_are_those_of_old_configurations_only():
    params = [nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))]
    for build in (Muon, partial(build_optimizer, "muon")):
        with pytest.raises(UserError, match="adamw_lr"):
            build(params, aux_lr=1.0, adamw_lr=2.0)
    with pytest.raises(UserError, match="both are given"):
        TrainConfig(data="tests", opt="muon", optimizer_settings={"adamw_lr": 0.1, "aux_lr": 0.2})
    config = TrainConfig(data="tests", opt="muon", optimizer_settings={"adamw_lr": 0.1})
    assert config.optimizer_settings == {"aux_lr": 0.1}


def test_train_and_sweep_have_both_dials_and_help_names_them(capsys):
    words = ["--data", "x", "--opt", "muon", "--lr", "0.02", "--aux-lr", "0.004", "--aux-weight-decay", "0.1"]
    config = parse(TrainConfig, words, prog="danalab train", description="").flags
    assert config.optimizer_settings == {"aux_lr": 0.004, "aux_weight_decay": 0.1}
    cells = expand({"lr_multiplier": [0.5, 1.0], "aux_lr_factor": [0.1, 0.3]}, {"opt": "muon", "data": "x"})
    assert [cell.config(None).optimizer_settings["aux_lr_factor"] for cell in cells] == [0.1, 0.3, 0.1, 0.3]
    with pytest.raises(SystemExit):
        parse(TrainConfig, ["--opt", "muon", "--help"], prog="danalab train", description="")
    shown = capsys.readouterr().out
    assert "--aux-lr-factor" in shown
    assert "--aux-weight-decay" in shown

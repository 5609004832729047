"""What every optimizer of ours refuses, in one line, with nothing changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import AdamWDecayingWD, ADana, DanaMK4, DanaStar, Muon


def param(*shape: int, dtype: torch.dtype = torch.float32, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": "fast"}, "lr"),
        ({"lr": torch.ones(2)}, "lr"),
        ({"delta": 0.0}, "delta"),
        ({"delta": float("inf")}, "delta"),
        ({"kappa": -0.1}, "kappa"),
        ({"kappa": 2.0}, "kappa"),
        ({"eps": -1e-8}, "eps"),
        ({"gamma3": float("nan")}, "gamma3"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"wd_ts": 0.0}, "wd_ts"),
        ({"weight_decay": 100.0, "wd_ts": 1.0}, "first step"),
        ({"omega": 4.0, "weight_decay": 0.1, "horizon": 100}, "both set the weight decay"),
        ({"horizon": 100}, "omega"),
        ({"omega": 4.0, "horizon": 100, "wd_ts": 3.0}, "both"),
        ({"omega": 4.0, "horizon": 0}, "horizon"),
        ({"omega": -4.0, "horizon": 10}, "omega"),
        ({"foreach": True, "fused": True}, "fused"),
        ({"foreach": True, "capturable": True}, "capturable"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(settings, word):
    with pytest.raises(UserError, match=word) as caught:
        ADana([param(2)], **settings)
    assert "\n" not in str(caught.value)


def test_bad_betas_and_clip_are_refused():
    with pytest.raises(UserError, match="betas"):
        AdamWDecayingWD([param(1)], betas=(0.9, 1.0))
    with pytest.raises(UserError, match="clipsnr"):
        DanaMK4([param(1)], clipsnr=-1.0)


def test_a_bad_setting_of_a_group_is_refused_and_the_group_not_kept():
    optimizer = ADana([param(1)])
    with pytest.raises(UserError, match="delta"):
        optimizer.add_param_group({"params": [param(2)], "delta": -1.0})
    assert len(optimizer.param_groups) == 1


def test_a_group_whose_back_end_is_refused_is_not_kept(monkeypatch):
    optimizer = ADana([param(1)])

    def no_compiler():
        raise UserError("no compiler")

    monkeypatch.setattr("danalab.optim.step.backends.choice.library", no_compiler)
    with pytest.raises(UserError, match="no compiler"):
        optimizer.add_param_group({"params": [param(2)], "fused": True})
    assert len(optimizer.param_groups) == len(optimizer.state) == 1


def test_a_group_of_which_a_part_is_refused_is_not_kept_at_all():
    optimizer = Muon([param(2, 2)], lr=0.1)
    with pytest.raises(UserError, match="complex64"):
        optimizer.add_param_group({"params": [param(3, 3), torch.ones(2, dtype=torch.complex64, requires_grad=True)]})
    assert len(optimizer.param_groups) == len(optimizer.state) == 1


def test_a_group_whose_omega_is_none_has_the_defaults():
    optimizer = ADana([param(1)], omega=4.0, horizon=1000)
    optimizer.add_param_group({"params": [param(2)], "omega": None, "horizon": None})
    optimizer.add_param_group({"params": [param(2)], "omega": 2.0})
    decays = [(group["weight_decay"], group["wd_ts"]) for group in optimizer.param_groups]
    assert decays == [(0.04, 100.0), (0.04, 100.0), (0.02, 100.0)]


@pytest.mark.parametrize(
    "params",
    [[], [torch.ones(2, dtype=torch.complex64, requires_grad=True)], [torch.ones(2, dtype=torch.int64)], ["w"]],
    ids=["empty", "complex", "integer", "no tensor"],
)
def test_parameters_that_cannot_be_optimized_are_refused(params):
    with pytest.raises(UserError):
        ADana(params)


def test_sparse_gradients_are_refused_by_name_and_nothing_changes():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    optimizer = ADana(table.named_parameters())
    with pytest.raises(UserError, match="'weight'"):
        optimizer.step()
    assert optimizer.state[table.weight]["step"] == 0


@pytest.mark.parametrize(("key", "meant"), [("kapa", "kappa"), ("weightdecay", "weight_decay"), ("omga", "omega")])
def test_a_misspelt_setting_of_a_group_is_refused(key, meant):
    with pytest.raises(UserError, match=f"did you mean '{meant}'"):
        ADana([{"params": [param(1)], key: 0.5}])
    ADana([{"params": [param(1)], "name": "mine", "layer": 3}])


def test_a_setting_that_the_optimizer_has_not_is_named():
    with pytest.raises(UserError, match="ADana has no betas; remove them"):
        ADana([param(1)], betas=(0.9, 0.999))
    with pytest.raises(TypeError, match=r"DanaStar has no weight_decy \(did you mean 'weight_decay'\?\); remove it"):
        DanaStar([param(1)], weight_decy=0.1)

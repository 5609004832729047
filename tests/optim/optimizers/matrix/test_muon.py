"""Muon and its kin as optimizers: who is a matrix, state, checkpoints, errors; and torch's own Muon as the oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim import DanaMuon, DMuon, Manau, Muon, build_optimizer, optimizer_spec
from danalab.optim.optimizers.matrix.muon import MATCHED_MUON

CLASSES = [Muon, DMuon, Manau]
NAMES = ["muon", "d-muon", "manau", "dana-muon"]


class Tiny(nn.Module):
    """One of each kind, a convolution among them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.convolution = nn.Conv2d(3, 4, (2, 3))
        self.up = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny()


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def matrices(optimizer: torch.optim.Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups if group["use_muon"] for name in group["param_names"]]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_grouped_by_kind(name):
    optimizer = build_optimizer(name, tiny(), lr=0.01, weight_decay=0.1)
    assert matrices(optimizer) == ["convolution.weight", "up.weight"]
    decays = {group["kind"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"matrix": 0.1, "head": 0.1, "embedding": 0.0, "vector": 0.0}


@pytest.mark.parametrize("cls", CLASSES)
def test_plain_parameters_are_split_by_names_and_shapes(cls):
    named = [
        ("h.0.attn.weight", nn.Parameter(torch.randn(4, 4))),
        ("wte.weight", nn.Parameter(torch.randn(11, 3))),
        ("lm_head.weight", nn.Parameter(torch.randn(11, 3))),
        ("other.weight", nn.Parameter(torch.randn(10_000, 1))),
        ("norm.weight", nn.Parameter(torch.randn(4))),
    ]
    assert matrices(cls(named)) == ["h.0.attn.weight"]
    without_names = cls([p for _, p in named])
    assert [len(group["params"]) for group in without_names.param_groups] == [3, 2]


def test_a_group_may_say_what_it_is():
    p, q = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))
    optimizer = DMuon([{"params": [p], "kind": "head"}, {"params": [q], "use_muon": True, "lr": 0.5}], lr=0.1)
    assert [group["use_muon"] for group in optimizer.param_groups] == [False, True]
    assert [group["peak_lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert "exp_avg" in optimizer.state[p]
    assert "momentum_buffer" in optimizer.state[q]


def test_muon_has_a_learning_rate_for_the_rest_that_follows_its_own():
    params = [nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))]
    assert [group["lr"] for group in Muon(params, lr=0.1).param_groups] == pytest.approx([0.1, 0.015])
    assert [group["lr"] for group in Muon(params, lr=0.1, aux_lr=0.002).param_groups] == [0.1, 0.002]
    assert [group["lr"] for group in Muon([{"params": params, "lr": 0.2}]).param_groups] == pytest.approx([0.2, 0.03])


def test_convolutions_count_as_flat_matrices():
    start = torch.randn(4, 3, 2, 2)
    conv, matrix = nn.Parameter(start.clone()), nn.Parameter(start.flatten(1).clone())
    conv.grad = torch.randn(start.shape)
    matrix.grad = conv.grad.flatten(1).clone()
    Muon([conv]).step()
    Muon([matrix]).step()
    assert torch.equal(conv.detach().flatten(1), matrix.detach())


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9)])
def test_muon_equals_torch_muon(shape, matched, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", Tensor.double)  # torch's orthogonalises in bfloat16 alone
    start = torch.randn(shape, dtype=torch.float64)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings = {"lr": 0.05, "weight_decay": 0.3, "momentum": 0.9}
    adjust = "match_rms_adamw" if matched else "original"
    oracle = torch.optim.Muon([theirs], adjust_lr_fn=adjust, **settings)
    optimizer = (DMuon if matched else Muon)([mine], **settings)
    for step in range(5):
        g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        mine.grad, theirs.grad = g.clone(), g.clone()
        optimizer.step()
        oracle.step()
    assert torch.allclose(mine, theirs, rtol=0, atol=1e-6)  # eps is added there to the norm of another scale


def test_batched_step_equals_the_pure_function():
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((5, 8), (8, 5), (5, 5), (5, 8))]
    grads = [torch.randn(p.shape, generator=generator) for p in start]
    params = [nn.Parameter(p.clone()) for p in start]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    optimizer = DMuon(params, lr=0.1, weight_decay=0.5)
    scalars = MATCHED_MUON.scalars(optimizer.param_groups[0], 1)
    optimizer.step()
    for p, old, g in zip(params, start, grads, strict=True):
        want, buffer = MATCHED_MUON.update(old, g, torch.zeros_like(old), **scalars)
        assert torch.allclose(p.detach(), want, rtol=0, atol=1e-6)
        assert torch.equal(optimizer.state[p]["momentum_buffer"], buffer)


@pytest.mark.parametrize("name", NAMES)
def test_state_is_there_from_construction_and_float32(name):
    model = tiny().bfloat16()
    optimizer = build_optimizer(name, model, lr=0.1)
    assert len(optimizer.state) == len(list(model.parameters()))
    for state in optimizer.state.values():
        assert {value.dtype for key, value in state.items() if key != "step"} == {torch.float32}
    before = weights(model)
    give_gradients(model, 0)
    optimizer.step()
    for p, old in zip(model.parameters(), before, strict=True):
        assert p.dtype == torch.bfloat16
        assert not torch.equal(p, old)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_gradient_are_left_alone(name):
    model = tiny()
    optimizer = build_optimizer(name, model, weight_decay=0.1)
    give_gradients(model, 0)
    silent = [model.up.weight, model.head.weight, model.norm.weight]
    before = [p.detach().clone() for p in silent]
    for p in silent:
        p.grad = None
    optimizer.step()
    for p, old in zip(silent, before, strict=True):
        assert torch.equal(p, old)
        assert optimizer.state[p]["step"] == 0
    assert optimizer.state[model.convolution.weight]["step"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_from_its_state_dict(name):
    model = tiny()
    optimizer = build_optimizer(name, model, lr=0.01, weight_decay=0.1)
    for step in range(3):
        give_gradients(model, step)
        optimizer.step()
    twin = copy.deepcopy(model)
    resumed = build_optimizer(name, twin, lr=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        for m, o in ((model, optimizer), (twin, resumed)):
            give_gradients(m, step)
            o.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_rehearsal_of_checkpoint_helpers_changes_nothing(name):
    model = tiny()
    optimizer = build_optimizer(name, model, lr=0.01, weight_decay=0.1)
    before = weights(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert all(state["step"] == 0 for state in optimizer.state.values())


@pytest.mark.parametrize("name", NAMES)
def test_maximize_is_the_opposite_gradient(name):
    up, down = tiny(), tiny()
    for model, sign in ((up, -1), (down, 1)):
        optimizer = build_optimizer(name, model, maximize=sign < 0)
        give_gradients(model, 0)
        for p in model.parameters():
            p.grad = sign * p.grad
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(up.parameters(), down.parameters(), strict=True))


def test_all_settings_are_in_the_groups_and_documented():
    for name in NAMES:
        spec = optimizer_spec(name)
        assert all(setting.help for setting in spec.settings.values())
        group = build_optimizer(name, tiny()).param_groups[0]
        # These make the rates and decays of groups.
        apart = {"aux_lr", "aux_lr_factor", "aux_weight_decay", "by_kind", "omega", "horizon", "decay_bound"}
        assert set(spec.settings) - apart <= set(group)


def test_muon_learns_a_linear_map():
    torch.manual_seed(0)
    target, model = torch.randn(8, 12), nn.Linear(12, 8, bias=False)
    optimizer = build_optimizer("muon", model, lr=0.3)
    for step in range(100):
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * (1 - step / 100)
        optimizer.zero_grad()
        (model.weight - target).square().mean().backward()
        optimizer.step()
    assert (model.weight - target).abs().max() < 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"ns_steps": 0}, "ns_steps is 0"),
        ({"ns_method": "polar"}, "polar-express"),
        ({"ns_dtype": "float16"}, "ns_dtype is 'float16'"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": 1.0, "weight_decay": 1.0}, "weight_decay 1 takes"),
        ({"foreach": True, "fused": True}, "exclude each other"),
    ],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_bad_settings_are_refused_in_a_line(cls, settings, words):
    with pytest.raises(UserError, match=words) as caught:
        cls([nn.Parameter(torch.randn(3, 3))], **settings)
    assert "\n" not in str(caught.value)


def test_groups_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match=r"unknown kind 'matirx' \(did you mean 'matrix'"):
        Muon([{"params": [nn.Parameter(torch.randn(3, 3))], "kind": "matirx"}])
    with pytest.raises(UserError, match="use_muon is set for parameter 'norm', which has 1 dimensions"):
        Muon([{"params": [("norm", nn.Parameter(torch.randn(3)))], "use_muon": True}])
    with pytest.raises(UserError, match="empty"):
        Muon([])


def test_a_state_dict_of_another_optimizer_is_refused():
    model = tiny()
    with pytest.raises(UserError, match="another optimizer"):
        build_optimizer("muon", model).load_state_dict(build_optimizer("manau", model).state_dict())


def test_a_factor_on_the_learning_rate_of_a_mixed_group_scales_matrices_and_the_rest():
    matrix, bias = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))
    groups = [{"params": [matrix, bias], "lr_factor": 0.5}, {"params": [torch.nn.Parameter(torch.ones(3))]}]
    optimizer = build_optimizer("muon", groups, lr=0.02)
    assert [(group["use_muon"], group["lr"]) for group in optimizer.param_groups] == [
        (True, 0.01),
        (False, pytest.approx(0.0015)),
        (False, pytest.approx(0.003)),
    ]


def test_dana_muon_is_manau_with_log_time_momentum():
    """Whose steps are golden (test_muon_golden.py)."""
    ends = []
    for cls, own in ((DanaMuon, {}), (Manau, {"dana_momentum": True})):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
        optimizer = cls(
            list(model.parameters()), lr=0.02, weight_decay=0.1, wd_ts=4, kappa=0.8, aux_lr_factor=1.0, **own
        )
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(7, 5)).square().mean().backward()
            optimizer.step()
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*ends)
    with pytest.raises(UserError, match="DanaMuon has no momentum"):
        DanaMuon([nn.Parameter(torch.randn(3, 3))], momentum=0.9)

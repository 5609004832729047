"""Muon, D-Muon, Manau and DanaMuon against their equations in float64, and what holds for all of them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from danalab.optim.base import decay_rate
from danalab.optim.muon import DanaMuon, DMuon, Manau, Muon
from danalab.optim.newton_schulz import coefficients

FAMILY = [Muon, DMuon, Manau, DanaMuon]
STEPS = 6


def orthogonal(x: Tensor, method: str) -> Tensor:
    flipped = x.shape[0] > x.shape[1]
    x = (x.T if flipped else x) / (x.norm() + 1e-7)
    for a, b, c in coefficients(method):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if flipped else x


def oracle(build, w: Tensor, grads: list[Tensor], h: dict) -> Tensor:
    """The trajectory of one matrix [rows, columns], written as in the papers."""
    buffer, moment, (rows, columns) = torch.zeros_like(w), 0.0, w.shape
    for t, g in enumerate(grads, 1):
        if build is DanaMuon or h.get("dana_momentum"):
            buffer = buffer + 8 / (8 + t) * (g - buffer)
            x = g + t**0.15 * buffer
        else:
            buffer = 0.95 * buffer + g
            x = g + 0.95 * buffer if h.get("nesterov", True) else g if build is Muon else buffer
        o = orthogonal(x, h.get("ns_method", "newton-schulz"))
        size, how = o.norm(), h.get("normalise", "normuon" if build is DanaMuon else None)
        if how in ("rows", "columns"):
            o = o / o.norm(dim=1 if how == "rows" else 0, keepdim=True)
        elif how == "normuon":
            moment = 0.9 * moment + 0.1 * o.square().mean(dim=1 if rows >= columns else 0, keepdim=True)
            o = o / (moment.sqrt() + 1e-10)
        u = (
            o
            * size
            / o.norm()
            * (max(1, rows / columns) ** 0.5 if build is Muon else 0.2 * max(rows, columns) ** 0.5)
        )
        shrunk = (u * w > 0).double() if h.get("cautious_decay") else torch.ones_like(w)
        w = w - 0.1 * 0.3 * shrunk * w - 0.1 * u
    return w


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nesterov": False},
        {"dana_momentum": True},
        {"ns_method": "polar-express"},
        *({"normalise": how} for how in (None, "rows", "columns", "normuon")),
        {"normalise": "normuon", "cautious_decay": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("build", FAMILY)
def test_matrices_follow_the_equation_in_float64(build, settings):
    def draw(seed, *shape):
        return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    if (
        not {"nesterov", "dana_momentum"} & settings.keys()
        or build is Manau
        or (build in (Muon, DMuon) and "nesterov" in settings)
    ):
        shapes = [(9, 5), (5, 9), (6, 4, 3), (2, 7, 4)]
        params = [nn.Parameter(draw(i, *shape)) for i, shape in enumerate(shapes)]
        groups = [
            {"params": params[:3], "kind": "matrix", **settings},
            {"params": params[3:], "kind": "experts", **settings},
        ]
        starts = [p.detach().clone() for p in params]
        grads = [[draw(100 * t + i, *shape) for t in range(STEPS)] for i, shape in enumerate(shapes)]
        optimizer = build(groups, lr=0.1, weight_decay=0.3)
        for t in range(STEPS):
            for p, own in zip(params, grads, strict=True):
                p.grad = own[t].clone()
            optimizer.step()
        for p, start, own in zip(params[:3], starts, grads, strict=False):
            want = oracle(build, start.flatten(1), [g.flatten(1) for g in own], settings)
            torch.testing.assert_close(p.detach().flatten(1), want, rtol=1e-9, atol=1e-10)
        for k in range(2):
            want = oracle(build, starts[3][k], [g[k] for g in grads[3]], settings)
            torch.testing.assert_close(params[3][k].detach(), want, rtol=1e-9, atol=1e-10)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(17, 8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8, bias=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 17, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(self.norm(x + self.down(torch.relu(self.up(x)))))


def train(model, optimizer, steps):
    for step in steps:
        tokens = torch.randint(0, 17, (4, 5), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def test_a_models_groups_are_its_kinds_with_rates_that_a_caller_can_edit():
    optimizer = DanaMuon(Model(), lr=0.1, weight_decay=0.3)
    found = {
        group["kind"]: (group["lr"], group["peak_lr"], group["weight_decay"])
        for group in optimizer.param_groups
    }
    assert found == {
        "matrix": (0.1, 0.1, 0.3),
        "head": (0.025, 0.025, 0.3),
        "embedding": (0.1, 0.1, 0.0),
        "vector": (0.00625, 0.00625, 0.0),
    }
    before = train(Model(), DanaMuon(Model()), [])
    model = Model()
    optimizer = DanaMuon(model, lr=0.1)
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if group["kind"] != "head" else 0.01
    after = train(model, optimizer, [0])
    changed = [
        name
        for (name, _), a, b in zip(model.named_parameters(), before, after, strict=True)
        if not a.equal(b)
    ]
    assert changed == ["head.weight"]
    assert [g["lr"] for g in Muon(Model(), lr=0.1, aux_lr_factor=0.5).param_groups] == [0.1, 0.05, 0.05, 0.05]


@pytest.mark.parametrize("normalise", [None, "normuon"])
@pytest.mark.parametrize("build", [Muon, DMuon, DanaMuon])
def test_a_resumed_run_is_bitwise_an_uninterrupted_one(build, normalise):
    model = Model()
    whole = train(model, build(model, lr=0.02, normalise=normalise), range(6))
    model = Model()
    first = build(model, lr=0.02, normalise=normalise)
    train(model, first, range(4))
    second = build(model, lr=0.5, normalise=normalise)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert all(a.equal(b) for a, b in zip(train(model, second, range(4, 6)), whole, strict=True))


@pytest.mark.parametrize("build", FAMILY)
def test_frozen_late_empty_and_16_bit_parameters(build):
    model = Model().bfloat16()
    model.empty = nn.Parameter(torch.empty(8, 0))
    model.down.weight.requires_grad_(False)
    optimizer = build(model, lr=0.02)
    kept = model.down.weight.clone()
    model.empty.grad = torch.empty(8, 0)
    train(model, optimizer, range(2))
    assert torch.equal(model.down.weight, kept)
    assert optimizer.state[model.up.weight]["momentum_buffer"].dtype == torch.float32
    model.down.weight.requires_grad_(True)
    train(model, optimizer, range(2))
    assert not torch.equal(model.down.weight, kept)
    steps = [int(optimizer.state[p]["step"]) for p in (model.up.weight, model.down.weight)]
    assert steps == [4, 2]
    late = nn.Parameter(torch.ones(3, 3))
    optimizer.add_param_group({"params": [("late", late)], "kind": "matrix"})
    late.grad = torch.eye(3)
    optimizer.step()
    assert not torch.equal(late, torch.ones(3, 3))


def test_decay_by_omega_is_bounded_and_falls_for_other_parameters():
    for build, falls in ((Muon, False), (DMuon, False), (DanaMuon, True), (Manau, True)):
        groups = build(Model(), lr=0.01, omega=4.0, horizon=1000).param_groups
        by_kind = {group["kind"]: group for group in groups}
        assert by_kind["matrix"]["weight_decay"] == pytest.approx(0.4)
        assert by_kind["embedding"]["weight_decay"] == 0.0
        assert decay_rate(by_kind["head"], 1000) == pytest.approx(0.2 if falls else 0.4)
        assert build(Model(), lr=0.01, omega=4.0, horizon=10).param_groups[0]["weight_decay"] == 1.0


def test_a_step_inside_torch_compile_is_the_eager_one():
    for build in FAMILY:
        first, second = Model(), Model()
        want = train(first, build(first, lr=0.02), range(3))
        optimizer = build(second, lr=0.02)
        alone = torch.compile(optimizer.step, backend="eager")
        for i in range(3):
            tokens = torch.randint(0, 17, (4, 5), generator=torch.Generator().manual_seed(i))
            nn.functional.cross_entropy(second(tokens).flatten(0, 1), tokens.flatten()).backward()
            alone()
            optimizer.zero_grad()
        for a, b in zip(second.parameters(), want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 2.0}, "momentum is 2.0"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"normalise": "heads"}, "normalise is 'heads'"),
        ({"ns_method": "newton"}, "ns_method is 'newton'"),
        ({"omega": 4.0}, "omega needs horizon, the length of the run in steps"),
        ({"omega": 4.0, "horizon": 0}, "horizon is 0; it must be finite and above 0"),
        ({"omega": 4.0, "horizon": 9, "weight_decay": 0.1}, "omega and weight_decay both"),
        ({"horizon": 9}, "horizon is 9 without omega"),
        ({"aux_lr_factor": math.nan}, "aux_lr_factor is nan"),
        ({"betas": (0.9, 1.0)}, "betas is"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Muon(Model(), **settings)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([{"params": [torch.ones(3)], "kind": "matrix"}], "fewer than 2 dimensions"),
        ([{"params": [torch.ones(3, 3)], "kind": "experts"}], "fewer than 3 dimensions"),
        ([{"params": [torch.ones(3, 3)], "kind": "matrices"}], "matrices"),
        ([{"params": [torch.ones(3)], "use_muon": True}], "fewer than 2 dimensions"),
    ],
)
def test_groups_that_mean_nothing_are_refused(groups, words):
    with pytest.raises(ValueError, match=words):
        DMuon([{**group, "params": [nn.Parameter(p) for p in group["params"]]} for group in groups])

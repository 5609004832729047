"""Each optimizer of the room equals its paper's formulas, written again in NumPy and float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import Muon, build_optimizer
from danalab.optim.optimizers.matrix import KLSOAP, Dion2, Kron, MuonH, Scion, SFNorMuon
from danalab.optim.optimizers.matrix.preconditioned import fit_interval, probe

SHAPES = ((7, 4), (4, 7))
STEPS, LR, DECAY, B1, B2, EPS = 13, 0.02, 0.3, 0.9, 0.95, 1e-8
"""More steps than one period of bases."""


def gradients(shape):
    return np.random.default_rng(shape[0]).normal(size=(STEPS, *shape))


def start(shape):
    return np.random.default_rng(100 + shape[0]).normal(size=shape)


def orthogonal(x):
    """Five steps of Newton-Schulz."""
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if turned else x


def unit(x):
    return x / np.linalg.norm(x)


def muon_h(w, gs):
    radius, buffer = np.linalg.norm(w), np.zeros_like(w)
    for g in gs:
        buffer = 0.95 * buffer + g
        w = radius * unit(w - LR * radius * unit(orthogonal(g + 0.95 * buffer)))
    return w


def adam_h(w, gs):
    radius, m, v = np.linalg.norm(w), 0.0, 0.0
    for t, g in enumerate(gs, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        w = radius * unit(w - LR * radius * unit(m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)))
    return w


def dion2(w, gs):
    rows, columns = w.shape
    buffer = np.zeros_like(w)
    for g in gs:
        buffer = buffer + g
        axis = 0 if rows <= columns else 1
        chosen = np.sort(np.argsort(-np.abs(buffer).sum(axis=1 - axis))[: math.ceil(0.25 * w.shape[axis])])
        place = np.ix_(chosen, range(columns)) if axis == 0 else np.ix_(range(rows), chosen)
        step = LR * math.sqrt(max(1.0, rows / columns)) * orthogonal(buffer[place])
        buffer[place] *= 0.95
        w = (1 - LR * DECAY) * w
        w[place] -= step
    return w


def scion(w, gs):
    d = np.zeros_like(w)
    for g in gs:
        d = 0.9 * d + 0.1 * g
        w = (1 - LR * DECAY) * w - LR * 50 * math.sqrt(w.shape[0] / w.shape[1]) * orthogonal(d)
    return w


def adam_mini(w, gs):
    m, v = 0.0, 0.0
    for t, g in enumerate(gs, 1):
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * np.mean(g**2, axis=1, keepdims=True)
        w = (1 - LR * DECAY) * w - LR * (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + EPS)
    return w


def kl_soap(w, gs):
    b1, b2, rho = 0.95, 0.9, 0.9
    rows, columns = w.shape
    least_a, least_b = (max(10, side) ** -2 for side in w.shape)
    g = torch.tensor(gs[0])
    first = [(1 - rho) * (g @ g.mT / columns), (1 - rho) * (g.mT @ g / rows)]
    # One of them has a null space, whose basis is any: so it must come from the same bits.
    qa, qb = (torch.linalg.eigh(s).eigenvectors.flip(-1).numpy() for s in first)
    sa, sb = (s.numpy() for s in first)
    la, lb, m, v = np.full(rows, 0.1), np.full(columns, 0.1), 0.0, 0.0
    for t, g in enumerate(gs[1:], 1):
        inside = qa.T @ g @ qb
        m, v = b1 * m + (1 - b1) * inside, b2 * v + (1 - b2) * inside**2
        step = qa @ (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + EPS)) @ qb.T
        w = (1 - LR * DECAY) * w - LR * step
        ia, ib = 1 / np.maximum(la, least_a), 1 / np.maximum(lb, least_b)
        inverse_a, inverse_b = qa @ np.diag(ia) @ qa.T, qb @ np.diag(ib) @ qb.T
        sa, sb = (
            rho * sa + (1 - rho) * g @ inverse_b @ g.T / columns,
            rho * sb + (1 - rho) * g.T @ inverse_a @ g / rows,
        )
        la = rho * la + (1 - rho) * (inside**2 @ ib) / columns
        lb = rho * lb + (1 - rho) * (ia @ inside**2) / rows
        if t % 10 == 0:
            whole = qa @ m @ qb.T
            qa, qb = (np.linalg.qr(s @ q)[0] for s, q in ((sa, qa), (sb, qb)))
            m = qa.T @ whole @ qb
    return w


def kron(w, gs):
    left, right, m = np.eye(w.shape[0]), np.eye(w.shape[1]), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        m = 0.9 * m + 0.1 * g
        mean = m / (1 - 0.9**t)
        noise = probe(t, torch.empty(w.shape, dtype=torch.float64)).numpy()
        a = left @ mean @ right.T
        b = np.linalg.inv(left).T @ noise @ np.linalg.inv(right)
        new = []
        for q, x, y in ((left, a @ a.T, b @ b.T), (right, a.T @ a, b.T @ b)):
            total = x + y
            column = total[:, np.argmax((total**2).sum(axis=0))]
            bound = np.linalg.norm(total @ unit(total @ column))
            new.append(q - 0.1 / bound * np.triu(x - y) @ q)
        left, right = new
        step = left.T @ left @ mean @ right.T @ right
        step = step * min(1.0, 1.1 / (np.sqrt(np.mean(step**2)) + 1e-6))
        w = (1 - LR * DECAY) * w - LR * step
    return w


def normuon(w, gs):
    """Li et al. 2025, algorithm 1, with the update's root mean square matched to 0.2."""
    m, v = np.zeros_like(w), np.zeros((len(w), 1))
    for g in gs:
        m = 0.95 * m + 0.05 * g
        o = orthogonal(0.05 * g + 0.95 * m)
        v = 0.95 * v + 0.05 * np.mean(o**2, axis=1, keepdims=True)
        o = o / (np.sqrt(v) + 1e-10)
        w = (1 - LR * DECAY) * w - LR * 0.2 * math.sqrt(w.size) / np.linalg.norm(o) * o
    return w


def sf_normuon(w, gs):
    """Apte et al. 2026: gradients at y = 0.1 z + 0.9 x, decay at z, x the average of z."""
    m, v, z, x = np.zeros_like(w), np.zeros((len(w), 1)), w, w
    for t, g in enumerate(gs, 1):
        m = 0.95 * m + 0.05 * g
        o = orthogonal(m)
        v = 0.95 * v + 0.05 * np.mean(o**2, axis=1, keepdims=True)
        o = o / (np.sqrt(v) + EPS)
        z = (1 - LR * DECAY) * z - LR * 0.2 * math.sqrt(w.size) / np.linalg.norm(o) * o
        x = x + (z - x) / t
    return 0.1 * z + 0.9 * x


ORACLES = {
    "muon-h": muon_h,
    "adam-h": adam_h,
    "dion2": dion2,
    "scion": scion,
    "adam-mini": adam_mini,
    "kl-soap": kl_soap,
    "psgd-kron": kron,
    "sf-normuon": sf_normuon,
}


def run(name, shape, dtype=torch.float64, **settings):
    p = nn.Parameter(torch.tensor(start(shape), dtype=dtype))
    group = {"params": [p], "use_muon": True}
    if name not in ("adam-h", "adam-mini", "kl-soap", "psgd-kron", "normuon"):
        settings = {"ns_dtype": "float64", **settings}
    optimizer = build_optimizer(name, [group], lr=LR, weight_decay=DECAY, **settings)
    for g in gradients(shape):
        p.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return p.detach().double().numpy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ORACLES)
def test_it_is_the_formula_of_its_paper(name, shape):
    np.testing.assert_allclose(run(name, shape), ORACLES[name](start(shape), gradients(shape)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_librarys_normuon_is_the_formula_of_its_paper(shape):
    pytest.importorskip("pytorch_optimizer")
    found = run("normuon", shape, torch.float32)
    # The library orthogonalises in bfloat16.
    np.testing.assert_allclose(found, normuon(start(shape), gradients(shape)), rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ORACLES)
def test_each_matrix_of_a_stack_of_experts_is_updated_by_itself(name):
    settings = {} if name in ("adam-h", "adam-mini", "kl-soap", "psgd-kron") else {"ns_dtype": "float64"}
    shape = (5, 5)  # no factor has a null space, whose basis would depend on the last bit
    whole = nn.Parameter(torch.tensor(np.stack([start(shape), 2 * start(shape)])))
    alone = [nn.Parameter(part.detach().clone()) for part in whole]
    together = build_optimizer(name, [{"params": [whole], "kind": "experts"}], lr=LR, **settings)
    each = build_optimizer(name, [{"params": alone, "use_muon": True}], lr=LR, **settings)
    for g in gradients(shape):
        whole.grad = torch.tensor(np.stack([g, -g]))
        alone[0].grad, alone[1].grad = torch.tensor(g), torch.tensor(-g)
        together.step(), each.step()
    if name == "psgd-kron":  # the noise of a stack is another one
        assert not torch.equal(whole[0], alone[0])
        return
    for part, p in zip(whole, alone, strict=True):
        torch.testing.assert_close(part, p, rtol=1e-10, atol=1e-12)


def test_others_are_adamw():
    w, gs = np.ones(5), np.random.default_rng(0).normal(size=(6, 5))
    for name in ORACLES:
        if name in ("scion", "sf-normuon"):  # theirs are signs, and AdamW without a schedule
            continue
        p = nn.Parameter(torch.tensor(w))
        optimizer = build_optimizer(name, [p], lr=1.0, aux_lr=LR, betas=(B1, B2))
        twin = nn.Parameter(torch.tensor(w))
        adamw = torch.optim.AdamW([twin], lr=LR, betas=(B1, B2), weight_decay=0.0)
        for g in gs:
            p.grad, twin.grad = torch.tensor(g), torch.tensor(g)
            optimizer.step(), adamw.step()
        torch.testing.assert_close(p, twin, rtol=1e-6, atol=0)  # eps is added before the correction of the bias


def test_scion_steps_by_signs_on_other_parameters():
    head, gain = nn.Parameter(torch.ones(3, 8)), nn.Parameter(torch.ones(3))
    groups = [{"params": [head], "kind": "head"}, {"params": [gain], "kind": "vector"}]
    optimizer = build_optimizer("scion", groups, lr=0.01, radius=2.0, other_radius=4.0)
    head.grad, gain.grad = torch.full((3, 8), -5.0), torch.full((3,), 0.1)
    optimizer.step()
    assert torch.allclose(head, torch.full((3, 8), 1 + 0.01 * 4 / 8))
    assert torch.allclose(gain, torch.full((3,), 1 - 0.01 * 2))


def test_schedule_free_normuon_is_schedule_free_adamw_on_other_parameters():
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64)) for _ in range(2))
    optimizers = [
        build_optimizer("sf-normuon", [{"params": [ours], "use_muon": False}], lr=LR),
        build_optimizer("sf-adamw", [theirs], lr=LR, betas=(0.9, 0.95)),
    ]
    draw = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        ours.grad = torch.randn(5, generator=draw, dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        for each in optimizers:
            each.step()
    assert torch.allclose(ours, theirs, rtol=1e-12)
    for each in optimizers:
        each.eval()
    assert torch.allclose(ours, theirs, rtol=1e-12)


def test_constrained_scion_stays_in_its_ball():
    p = nn.Parameter(5 * torch.randn(6, 6))
    optimizer = build_optimizer("scion", [{"params": [p], "use_muon": True}], lr=0.2, radius=3.0, weight_decay=1.0)
    for step in range(60):
        p.grad = torch.randn(6, 6, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    assert torch.linalg.matrix_norm(p.detach(), 2) < 3.0 * 1.2  # O's singular values are at most 1.2


def test_a_hyperball_of_radius_0_is_refused():
    for name in ("muon-h", "adam-h"):
        p = nn.Parameter(torch.zeros(3, 3))
        p.grad = torch.ones(3, 3)
        with pytest.raises(UserError, match="is zero"):
            build_optimizer(name, [{"params": [p], "use_muon": True}]).step()


@pytest.mark.parametrize(
    ("classes", "settings", "words"),
    [
        ((Dion2, MuonH, Scion, Kron, SFNorMuon), {"momentum": 1.0}, "momentum is 1.0"),
        ((Dion2, MuonH, Scion, SFNorMuon), {"ns_steps": 0}, "ns_steps is 0"),
        ((Dion2, MuonH, Scion), {"ns_dtype": "float16"}, "ns_dtype is 'float16'"),
        ((Dion2, MuonH, Scion, Kron, KLSOAP), {"lr": 1.0, "weight_decay": 1.0}, "weight_decay 1 takes"),
        ((Dion2,), {"fraction": 0.0}, "fraction is 0.0"),
        ((KLSOAP,), {"shampoo_beta": 1.0}, "shampoo_beta is 1.0"),
    ],
)
def test_bad_settings_are_refused_by_name(classes, settings, words):
    for cls in classes:
        with pytest.raises(UserError, match=f"^{cls.__name__}: {words}|^{words}"):
            cls([nn.Parameter(torch.ones(3, 3))], **settings)


@pytest.mark.parametrize("cls", [Muon, Dion2, MuonH, Scion])
def test_a_group_has_its_own_dtype_of_the_orthogonalisation(cls):
    values = []
    for group in ({"ns_dtype": torch.float64}, {"ns_dtype": "float64"}, {}):
        p = nn.Parameter(torch.eye(3) + 0.1)
        p.grad = torch.arange(9.0).reshape(3, 3) - 3.3
        cls([{"params": [p], "use_muon": True, **group}], lr=0.1).step()
        values.append(p.detach())
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_the_norm_of_a_matrix_on_a_hyperball_does_not_drift():
    p = nn.Parameter(torch.randn(8, 5))
    optimizer = build_optimizer("muon-h", [{"params": [p], "use_muon": True}], lr=0.3)
    before = p.detach().norm()
    for step in range(200):
        p.grad = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    assert abs(p.detach().norm() / before - 1) < 1e-5


def test_fits_become_rarer():
    assert [fit_interval(t, 500) for t in (1, 500, 1193, 2000, 10_000)] == [1, 1, 2, 4, 33]

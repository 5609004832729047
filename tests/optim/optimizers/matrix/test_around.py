"""Options around the orthogonalisation: against formulas in float64, and alike in every optimizer that has them."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import DanaMuon, DMuon, Manau, Muon, build_optimizer
from danalab.optim.optimizers.matrix import KLSOAP, MuonH, Scion, orthogonalize
from danalab.optim.optimizers.matrix.newton_schulz import NORMALISATIONS, normalised

CLASSES = [Muon, DMuon, DanaMuon, Manau]
NO_MOMENTUM = {DanaMuon: {"fresh": 1.0}} | {cls: {"momentum": 0.0} for cls in (Muon, DMuon, Manau, Scion)}
SIZE = {
    Muon: lambda rows, columns: math.sqrt(max(1, rows / columns)),
    Scion: lambda rows, columns: 50 * math.sqrt(rows / columns),
}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def stepped(cls, start, grads, **settings):
    p = nn.Parameter(start.clone())
    group = {key: settings.pop(key) for key in ("heads", "kind") if key in settings}
    optimizer = cls([{"params": [p], "use_muon": True, **group}], **{"lr": 0.1, **settings})
    for g in grads:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (4, 3, 2)])
@pytest.mark.parametrize("cls", [*CLASSES, Scion])
def test_rows_or_columns_have_equal_norms_and_the_whole_its_own(cls, shape):
    start, g = draw(*shape), draw(*shape, seed=1)
    o = orthogonalize(g.flatten(1))
    rows, columns = o.shape
    by_rows = o / o.norm(dim=1, keepdim=True) * o.norm() / math.sqrt(rows)
    by_columns = o / o.norm(dim=0, keepdim=True) * o.norm() / math.sqrt(columns)
    size = 0.1 * SIZE.get(cls, lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)))(rows, columns)
    for how, want in (("rows", by_rows), ("columns", by_columns)):
        moved = stepped(cls, start, [g], normalise=how, **NO_MOMENTUM[cls]) - start
        torch.testing.assert_close(moved.flatten(1), -size * want, rtol=1e-4, atol=1e-9)
    zero = torch.zeros(shape, dtype=torch.float64)
    assert torch.equal(stepped(cls, start, [zero], normalise="rows"), start)


@pytest.mark.parametrize("how", [how for how in NORMALISATIONS if how != "normuon"])
def test_the_last_side_is_exactly_equal(how):
    o = normalised(draw(3, 5, 8), how)
    sizes = o.norm(dim={"rows": -1, "columns": -2}[how.rpartition("-")[2]])
    torch.testing.assert_close(sizes, sizes[:, :1].expand_as(sizes))
    torch.testing.assert_close(o.norm(dim=(1, 2)), draw(3, 5, 8).norm(dim=(1, 2)))


@pytest.mark.parametrize("cls", CLASSES)
def test_a_held_norm_stays_and_the_angle_is_the_learning_rate(cls):
    start, grads = draw(5, 8), [draw(5, 8, seed=seed) for seed in range(40)]
    radius = start.norm()
    u = orthogonalize(grads[0])
    moved = start - 0.1 * radius * u / u.norm()
    once = stepped(cls, start, grads[:1], hold_norm=True, weight_decay=0.1, **NO_MOMENTUM[cls])
    torch.testing.assert_close(once, radius * moved / moved.norm(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(stepped(cls, start, grads, hold_norm=True).norm(), radius)
    assert torch.equal(stepped(cls, start, grads, hold_norm=False), stepped(cls, start, grads))


@pytest.mark.parametrize(
    ("cls", "settings"),
    [(cls, own) for cls in CLASSES for own in ({}, {"normalise": "columns"}, {"hold_norm": True})]
    + [(Scion, {}), (Scion, {"normalise": "columns"}), (Scion, {"normalise": "normuon"})],
)
def test_heads_are_matrices_of_their_own(cls, settings):
    start, grads = draw(12, 8), [draw(12, 8, seed=seed) for seed in range(3)]
    if "hold_norm" not in settings:  # the norm that is held is the whole matrix's
        parts = [stepped(cls, start[i : i + 4], [g[i : i + 4] for g in grads], **settings) for i in (0, 4, 8)]
        together = stepped(cls, start, grads, heads=3, **settings)
        torch.testing.assert_close(together, torch.cat(parts), rtol=1e-9, atol=1e-9)
    stack = torch.stack([start, start.flip(0)])
    of_stack = [torch.stack([g, g.flip(1)]) for g in grads]
    found = stepped(cls, stack, of_stack, kind="experts", heads=3, **settings)
    for i in range(2):
        want = stepped(cls, stack[i], [g[i] for g in of_stack], heads=3, **settings)
        torch.testing.assert_close(found[i], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "settings", [{"normalise": "rows"}, {"normalise": "normuon"}, {"heads": 3}, {"heads": 2, "normalise": "normuon"}]
)
@pytest.mark.parametrize("kind", ["matrix", "experts"])
def test_muon_h_with_an_option_is_muon_with_held_norms_and_that_option(kind, settings):
    shape = (6, 8) if kind == "matrix" else (2, 6, 8)
    start, grads = draw(*shape), [draw(*shape, seed=seed) for seed in range(4)]
    want = stepped(Muon, start, grads, kind=kind, hold_norm=True, **settings)
    torch.testing.assert_close(stepped(MuonH, start, grads, kind=kind, **settings), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"normalise": "rows"},
        {"hold_norm": True},
        {"heads": 2},
        {"cautious_decay": True},
        {"normalise": "normuon", "heads": 3, "cautious_decay": True},
        {"normalise": "normuon", "hold_norm": True},
        {"uw_floor": 3.0, "normalise": "normuon"},
    ],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_the_pure_function_is_the_step(cls, settings):
    p, grads = nn.Parameter(draw(6, 4)), [draw(6, 4, seed=seed) for seed in (2, 3, 4)]
    heads = {key: value for key, value in settings.items() if key == "heads"}
    rest = {key: value for key, value in settings.items() if key != "heads"}
    optimizer = cls([{"params": [p], "use_muon": True, **heads}], lr=0.1, weight_decay=0.2, **rest)
    [group] = optimizer.param_groups
    rule, want = optimizer.rule_of(group), draw(6, 4)
    state = [optimizer.state[p][name].clone() for name in rule.moments]
    for t, g in enumerate(grads, 1):
        p.grad = g.clone()
        optimizer.step()
        want, *state = rule.update(want, g, *state, **rule.scalars(group, t))
        torch.testing.assert_close(p.detach(), want, rtol=1e-9, atol=1e-12)
    for name, each in zip(rule.moments, state, strict=True):
        torch.testing.assert_close(optimizer.state[p][name], each, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (4, 3, 2)])
def test_the_second_moment_of_rows_around_muon_is_normuon(shape, monkeypatch):
    library = pytest.importorskip("pytorch_optimizer")
    module = sys.modules[library.NorMuon.__module__]
    monkeypatch.setattr(module, "zero_power_via_newton_schulz_5", lambda x, num_steps, weights: orthogonalize(x))
    start, grads = draw(*shape), [draw(*shape, seed=seed) for seed in range(1, 5)]
    p = nn.Parameter(start.clone())
    form = {"update_scale": "preserve_norm", "use_adjusted_lr": False, "foreach": False}
    theirs = library.NorMuon([{"params": [p], "use_muon": True}], lr=0.1, weight_decay=0.1, beta2=0.9, **form)
    for g in grads:
        p.grad = g.clone()
        theirs.step()
    found = stepped(Muon, start, grads, weight_decay=0.1, normalise="normuon", row_beta=0.9)
    torch.testing.assert_close(found, p.detach(), rtol=0, atol=1e-6)
    stack = stepped(Muon, torch.stack([start.flatten(1)] * 2), [torch.stack([g.flatten(1)] * 2) for g in grads],
                    kind="experts", weight_decay=0.1, normalise="normuon", row_beta=0.9)  # fmt: skip
    torch.testing.assert_close(stack[1], p.detach().flatten(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_update_below_the_floor_is_raised_to_it_and_no_other(cls):
    start, g = draw(5, 8), draw(5, 8, seed=1)
    plain = stepped(cls, start, [g], **NO_MOMENTUM[cls]) - start  # = - 0.1 u
    ratio = float(10 * plain.norm() / start.norm())
    for floor in (0.0, 0.5 * ratio, 3 * ratio):
        moved = stepped(cls, start, [g], uw_floor=floor, weight_decay=0.2, **NO_MOMENTUM[cls]) - 0.98 * start
        torch.testing.assert_close(moved, plain * max(1.0, floor / ratio), rtol=1e-6, atol=1e-9)
    assert torch.equal(stepped(cls, start, [0 * g], uw_floor=1.0), start)


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 2), (2, 6, 4)])
def test_second_moments_of_rows_are_saved_and_resumed(shape):
    grads = [draw(*shape, seed=seed).float() for seed in range(4)]
    kind = "experts" if shape[0] == 2 else "matrix"
    straight, half = nn.Parameter(draw(*shape).float()), nn.Parameter(draw(*shape).float())
    saved: dict[str, Any] = {}
    for p, stops in ((straight, (4,)), (half, (2, 4))):
        saved, start = {}, 0
        for stop in stops:
            optimizer = DanaMuon([{"params": [p], "kind": kind}], normalise="normuon", uw_floor=2.0)
            if saved:
                optimizer.load_state_dict(saved)
            for g in grads[start:stop]:
                p.grad = g.clone()
                optimizer.step()
            saved, start = copy.deepcopy(optimizer.state_dict()), stop
    assert torch.equal(straight, half)
    with pytest.raises(UserError, match="has row_moment"):
        DanaMuon([{"params": [half], "kind": kind}]).load_state_dict(saved)


def test_kl_soap_steps_along_the_orthogonalised_update_at_d_muons_size():
    start, grads = draw(4, 6), [draw(4, 6, seed=seed) for seed in range(2)]
    plain = stepped(KLSOAP, start, grads) - start
    found = stepped(KLSOAP, start, grads, orthogonalise=True) - start
    torch.testing.assert_close(found, -0.1 * 0.2 * math.sqrt(6) * orthogonalize(-plain), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "group", "words"),
    [
        ({"normalise": "row"}, {}, "normalise is 'row'; it must be one of rows, columns, rows-columns, columns-rows"),
        ({"row_beta": 1.0}, {}, r"row_beta is 1.0; it must be finite and in \[0, 1\)"),
        ({"uw_floor": -1.0}, {}, "uw_floor is -1.0; it must be finite and not negative"),
        ({"uw_floor": 0.5, "hold_norm": True}, {}, "uw_floor has no effect"),
        ({}, {"heads": 0}, "heads is 0; it must be a whole number"),
        ({}, {"heads": 2.0}, "heads is 2.0"),
        ({}, {"heads": 4}, "has 6 rows; it must be a multiple of heads, 4"),
        ({"hold_norm": True}, {}, "is zero, and hold_norm keeps its norm"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, group, words):
    for cls in (*CLASSES, MuonH, Scion) if {*settings} <= {"normalise", "row_beta"} else CLASSES:
        with pytest.raises(UserError, match=words):
            cls([{"params": [nn.Parameter(torch.zeros(6, 3))], "use_muon": True, **group}], **settings)


@pytest.mark.parametrize("name", ["dana-muon", "muon", "muon-h", "scion"])
def test_per_head_takes_the_heads_that_a_model_declares(name):
    torch.manual_seed(0)
    config = ModelConfig("gpt", 12, 2, 4, 3, 24, vocab_size=20, seq_len=8, n_kv_heads=2)
    model, twin = build_model(config, seed=0), build_model(config, seed=0)
    optimizer = build_optimizer(name, model, lr=0.1, per_head=True)
    declared = {
        key: group["heads"] for group in optimizer.param_groups if "heads" in group for key in group["param_names"]
    }
    own = {f"blocks.{i}.mixer.{part}.weight": count for i in range(2) for part, count in (("q", 4), ("k", 2), ("v", 2))}
    assert {key.replace("attention", "mixer"): count for key, count in declared.items()} == own
    named = dict(twin.named_parameters())
    kinds = {key: group["kind"] for group in optimizer.param_groups for key in group["param_names"]}
    heads = {key: {"heads": count} for key, count in declared.items()}
    groups = [{"params": [(key, named[key])], "kind": kind, **heads.get(key, {})} for key, kind in kinds.items()]
    by_hand = build_optimizer(name, groups, lr=0.1)
    for made, each in ((optimizer, model), (by_hand, twin)):
        for seed, p in enumerate(each.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        made.step()
    for key, p in model.named_parameters():
        torch.testing.assert_close(p, named[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", [Muon, MuonH, Scion])
def test_per_head_needs_a_model_that_declares_its_heads(cls):
    with pytest.raises(UserError, match="Linear has no method attention_heads"):
        cls(nn.Linear(4, 4), per_head=True)
    with pytest.raises(UserError, match="per_head needs a model"):
        cls([nn.Parameter(torch.ones(4, 4))], per_head=True)

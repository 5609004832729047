"""Options around the orthogonalisation: against formulas in float64, and alike in every optimizer that has them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.optim import DanaMuon, DMuon, Manau, Muon, build_optimizer
from danalab.optim.optimizers.matrix import KLSOAP, orthogonalize
from danalab.optim.optimizers.matrix.newton_schulz import NORMALISATIONS, normalised

CLASSES = [Muon, DMuon, DanaMuon, Manau]
NO_MOMENTUM = {Muon: {"momentum": 0.0}, DMuon: {"momentum": 0.0}, DanaMuon: {"fresh": 1.0}, Manau: {"momentum": 0.0}}


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
@pytest.mark.parametrize("cls", CLASSES)
def test_rows_or_columns_have_equal_norms_and_the_whole_its_own(cls, shape):
    start, g = draw(*shape), draw(*shape, seed=1)
    o = orthogonalize(g.flatten(1))
    rows, columns = o.shape
    by_rows = o / o.norm(dim=1, keepdim=True) * o.norm() / math.sqrt(rows)
    by_columns = o / o.norm(dim=0, keepdim=True) * o.norm() / math.sqrt(columns)
    size = 0.1 * (math.sqrt(max(1, rows / columns)) if cls is Muon else 0.2 * math.sqrt(max(rows, columns)))
    for how, want in (("rows", by_rows), ("columns", by_columns)):
        moved = stepped(cls, start, [g], normalise=how, **NO_MOMENTUM[cls]) - start
        torch.testing.assert_close(moved.flatten(1), -size * want, rtol=1e-4, atol=1e-9)
    zero = torch.zeros(shape, dtype=torch.float64)
    assert torch.equal(stepped(cls, start, [zero], normalise="rows"), start)


@pytest.mark.parametrize("how", NORMALISATIONS)
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


@pytest.mark.parametrize("settings", [{}, {"normalise": "columns"}, {"hold_norm": True}])
@pytest.mark.parametrize("cls", CLASSES)
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
    "settings", [{"normalise": "rows"}, {"hold_norm": True}, {"heads": 2}, {"cautious_decay": True}]
)
@pytest.mark.parametrize("cls", CLASSES)
def test_the_pure_function_is_the_step(cls, settings):
    start, g = draw(6, 4), draw(6, 4, seed=2)
    rule = cls.matrix_rule
    settings = {"weight_decay": 0.2, **settings}
    found = stepped(cls, start, [g], **settings)
    p = nn.Parameter(start.clone())
    group = {"params": [p], "use_muon": True, **({"heads": 2} if settings.pop("heads", None) else {})}
    optimizer = cls([group], lr=0.1, **settings)
    want, _ = rule.update(start, g, torch.zeros_like(g), **rule.scalars(optimizer.param_groups[0], 1))
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_kl_soap_steps_along_the_orthogonalised_update_at_d_muons_size():
    start, grads = draw(4, 6), [draw(4, 6, seed=seed) for seed in range(2)]
    plain = stepped(KLSOAP, start, grads) - start
    found = stepped(KLSOAP, start, grads, orthogonalise=True) - start
    torch.testing.assert_close(found, -0.1 * 0.2 * math.sqrt(6) * orthogonalize(-plain), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "group", "words"),
    [
        ({"normalise": "row"}, {}, "normalise is 'row'; it must be one of rows, columns, rows-columns, columns-rows"),
        ({}, {"heads": 0}, "heads is 0; it must be a whole number"),
        ({}, {"heads": 2.0}, "heads is 2.0"),
        ({}, {"heads": 4}, "has 6 rows; it must be a multiple of heads, 4"),
        ({"hold_norm": True}, {}, "is zero, and hold_norm keeps its norm"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, group, words):
    for cls in CLASSES:
        with pytest.raises(UserError, match=words):
            cls([{"params": [nn.Parameter(torch.zeros(6, 3))], "use_muon": True, **group}], **settings)


@pytest.mark.parametrize("name", ["dana-muon", "muon"])
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
    rest = [each for each in twin.named_parameters() if each[0] not in declared]
    groups = [{"params": [(key, named[key])], "kind": "matrix", "heads": count} for key, count in declared.items()]
    by_hand = build_optimizer(name, groups + build_optimizer(name, rest, lr=0.1).param_groups, lr=0.1)
    for made, each in ((optimizer, model), (by_hand, twin)):
        for seed, p in enumerate(each.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        made.step()
    for key, p in model.named_parameters():
        torch.testing.assert_close(p, named[key], rtol=0, atol=1e-6)


def test_per_head_needs_a_model_that_declares_its_heads():
    with pytest.raises(UserError, match="Linear has no method attention_heads"):
        Muon(nn.Linear(4, 4), per_head=True)
    with pytest.raises(UserError, match="per_head needs a model"):
        Muon([nn.Parameter(torch.ones(4, 4))], per_head=True)

"""The foreach way: one text of each update for lists and for blocks, and temporaries that share memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from danalab.optim import build_optimizer
from danalab.optim.backends.blocks import CACHE_BLOCK, SameMemory, in_blocks
from danalab.optim.backends.foreach import Many, fresh

NAMES = ("adana", "dana-mk4", "dana-star", "dana-star-mk4", "adamw-decaying-wd", "ademamix", "auto-dana", "dana")


def lists_of(name: str, shapes: Iterable[tuple[int, ...]]):
    """Rule, scalars of step 7, and lists of what it updates, mid-way in a run."""
    generator = torch.Generator().manual_seed(0)
    p = torch.zeros(1, requires_grad=True)
    optimizer = build_optimizer(name, [p], lr=0.1, foreach=True)
    group = optimizer.param_groups[0]
    rule = optimizer.rule_of(group)  # pyright: ignore[reportAttributeAccessIssue]
    signed = [[torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in range(3)]
    rest = [[torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in rule.moments[1:]]
    return rule, rule.scalars(group, 7), [*signed, *rest]


@pytest.mark.parametrize("name", [*NAMES, "sign-dana"])
def test_a_rule_does_to_a_list_what_it_does_to_each_tensor(name):
    rule, scalars, lists = lists_of(name, [(5, 3), (), (17,)])
    copies = [[x.clone() for x in xs] for xs in lists]
    with torch.no_grad():
        rule.foreach(fresh, *map(Many, lists), **scalars)
        memory = SameMemory()
        for tensors in in_blocks(copies):
            memory.start_block()
            rule.foreach(memory, *tensors, **scalars)
    for mine, theirs in zip(lists, copies, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [*NAMES, "sign-dana"])
def test_small_tensors_go_together_and_get_the_same_bits(name, monkeypatch):
    def step(small: int) -> tuple[list[torch.Tensor], int]:
        monkeypatch.setattr("danalab.optim.backends.choice.SMALL", small)
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(s, generator=generator, requires_grad=True) for s in ((33, 5), (), (40, 9), (7,))]
        optimizer = build_optimizer(name, params, lr=0.1, foreach=True)
        lists: list[int] = []
        monkeypatch.setattr(
            "danalab.optim.backends.choice.Many", lambda tensors: lists.append(len(tensors)) or Many(tensors)
        )
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
        return [p.detach() for p in params], max(lists, default=0)

    alone, none = step(0)
    together, longest = step(200)
    assert (none, longest) == (0, 3)
    assert all(map(torch.equal, alone, together))


def test_temporaries_of_all_blocks_lie_in_the_same_memory():
    memory = SameMemory()
    places = []
    for size in (9, 9, 4, 9):
        memory.start_block()
        x = torch.rand(size)
        places.append([memory("sqrt", x).data_ptr(), memory("mul", x, 2.0).data_ptr()])
    assert places == [places[0]] * 4
    assert places[0][0] != places[0][1]


def test_what_is_larger_than_a_block_is_not_kept():
    memory = SameMemory()
    for x in (torch.ones(CACHE_BLOCK + 1), torch.ones(3, 2).t()):
        memory.start_block()
        made = memory("neg", x)
        memory.start_block()
        assert made.shape == x.shape
        assert memory("neg", x).data_ptr() != made.data_ptr()


def test_an_operation_may_overwrite_a_temporary_it_reads():
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    for new, wrap in ((SameMemory(), lambda t: t), (fresh, lambda t: Many([t]))):
        step = new("mul", wrap(x), 2.0)
        result = new("addcmul", wrap(y), step, wrap(x), value=10.0, over=step)
        assert result is step or result.data_ptr() == step.data_ptr()
        (found,) = result.tensors if isinstance(result, Many) else [result]
        assert found.tolist() == [23.0, 85.0]


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_threads_do_not_show_in_the_result(threads, monkeypatch):
    before = torch.get_num_threads()
    finished = []
    try:
        for block, count in ((1 << 18, 1), (1 << 16, threads)):
            monkeypatch.setattr("danalab.optim.backends.blocks.CACHE_BLOCK", block)
            torch.set_num_threads(count)
            generator = torch.Generator().manual_seed(0)
            p = torch.randn(300, 500, generator=generator, requires_grad=True)
            optimizer = build_optimizer("dana-star-mk4", [p], lr=1e-2, foreach=True)
            for _ in range(3):
                p.grad = torch.randn(p.shape, generator=generator)
                optimizer.step()
            finished.append(p.detach())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*finished)

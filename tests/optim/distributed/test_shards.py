"""Elements of a flattened tensor as blocks of its shape."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from danalab.optim.distributed.shards import TensorShard


@st.composite
def cuts(draw):
    """(shape, two places to cut its elements at)."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    numel = torch.Size(shape).numel()
    return shape, sorted((draw(st.integers(0, numel)), draw(st.integers(0, numel))))


@given(cuts())
def test_the_blocks_of_all_parts_are_the_tensor(cut):
    shape, places = cut
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    bounds = [0, *places, whole.numel()]
    found = torch.full(shape, -1.0)
    blocks = 0
    for start, stop in itertools.pairwise(bounds):
        for offsets, values in TensorShard(shape, whole.dtype, start, whole.view(-1)[start:stop]).blocks():
            region = found[tuple(slice(o, o + n) for o, n in zip(offsets, values.shape, strict=True))]
            assert torch.all(region == -1)
            region.copy_(values)
            blocks += 1
    assert torch.equal(found, whole)
    assert blocks <= 3 * (2 * len(shape) - 1)


def test_a_tensor_of_nothing_is_one_block_of_nothing():
    [(offsets, values)] = TensorShard((3, 0), torch.float32, 0, torch.empty(3, 0)).blocks()
    assert (offsets, values.shape) == ((0, 0), (3, 0))


def test_of_what_others_have_there_are_no_blocks():
    assert list(TensorShard((3, 2), torch.float32).blocks()) == []

"""Blocks, queue and pieces of prompts, without a model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.inference import Request, SamplingParameters
from danalab.inference.request import RequestState
from danalab.inference.scheduler import BlockPool, Scheduler


def sequence(number: int, length: int, scope: str = "", limit: int = 8) -> RequestState:
    request = Request([1 + number] * length, SamplingParameters(), prefix_scope=scope)
    return RequestState(number, request, limit, frozenset())


def scheduler(blocks: int = 100, **changes: int) -> Scheduler:
    settings = {"max_batch_size": 4, "step_tokens": 20, "prefix_reuse": True, **changes}
    return Scheduler(BlockPool(blocks, 4), **settings)  # pyright: ignore[reportArgumentType]


def step(of: Scheduler) -> dict[int, int]:
    """Compute one step and draw one token for each sequence that is ready; returns tokens by sequence."""
    chunks = of.plan()
    for chunk in chunks:
        of.advance(chunk)
        if not chunk.sequence.pending:
            chunk.sequence.drawn += 1
            chunk.sequence.tokens.append(7)
    return {chunk.sequence.id: chunk.length for chunk in chunks}


def test_a_long_prompt_comes_in_pieces_and_delays_nobody():
    of = scheduler()
    of.add(sequence(0, 3))
    assert step(of) == {0: 3}
    of.add(sequence(1, 45))
    assert [step(of) for _ in range(4)] == [{0: 1, 1: 19}, {0: 1, 1: 18}, {0: 1, 1: 8}, {0: 1, 1: 1}]


def test_a_large_request_is_not_overtaken_by_small_ones():
    of = scheduler(blocks=6)
    of.add(sequence(0, 12))
    step(of)
    of.add(sequence(1, 16))
    of.add(sequence(2, 1))
    assert step(of) == {0: 1}
    of.remove(of.running[0])
    assert step(of).keys() == {1, 2}


def test_the_youngest_gives_up_its_blocks_and_comes_back_first():
    of = scheduler(blocks=4)
    for number in range(2):
        of.add(sequence(number, 7))
    of.add(sequence(2, 1, "other"))
    while not of.preemptions:
        step(of)
    assert [running.id for running in of.running] == [0]
    assert of.pool is not None
    of.remove(of.running[0])
    assert step(of).keys() == {1, 2}


def test_full_blocks_are_reused_but_for_the_last_token():
    of = scheduler()
    first = sequence(0, 20)
    of.add(first)
    assert [step(of)[0] for _ in range(2)] == [20, 1]
    of.remove(first)
    of.add(sequence(0, 20))
    assert step(of) == {0: 4}
    assert of.reused == 16


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_blocks_are_never_lost_or_given_twice(data: st.DataObject):
    pool, held = BlockPool(6, 2), []
    for _ in range(data.draw(st.integers(1, 25))):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=8))
        scope = data.draw(st.sampled_from("ab"))
        blocks, node = pool.match(scope, tokens, 4)
        assert len(blocks) <= len(tokens) // 2
        if pool.available:
            blocks.append(pool.take())
            if len(blocks) * 2 <= len(tokens):
                pool.publish(blocks[-1], node, tuple(tokens[len(blocks) * 2 - 2 : len(blocks) * 2]))
        held.append(blocks)
        if data.draw(st.booleans()):
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        used = {block for blocks in held for block in blocks}
        assert pool.available + len(used) == pool.n_blocks
    for blocks in held:
        pool.release(blocks)
    assert sorted(pool.take() for _ in range(6)) == list(range(6))


def test_a_prefix_is_found_in_its_scope_only_until_its_memory_is_needed():
    pool = BlockPool(3, 2)
    first, second = pool.take(), pool.take()
    node = pool.publish(first, "a", (1, 2))
    pool.publish(second, node, (3, 4))
    pool.release([first, second])
    assert pool.match("b", [1, 2, 3, 4], 9) == ([], "b")
    assert pool.match("a", [1, 2, 3, 4], 9)[0] == [first, second]
    pool.release([first, second])
    assert pool.match("a", [1, 2, 9, 9], 9)[0] == [first]
    pool.release([first])
    taken = [pool.take(), pool.take()]  # the unused block, then the end of the prefix
    assert second in taken
    assert pool.match("a", [1, 2, 3, 4], 9)[0] == [first]
    pool.release([first])
    pool.forget()
    assert pool.match("a", [1, 2, 3, 4], 9)[0] == []
    assert pool.available == 1

"""Sampling in one pass over a batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.inference import Request, SamplingParameters
from danalab.inference.request import RequestState
from danalab.inference.sampling import DrawnTokens, draw, uniform

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def sequence(prompt: list[int] | None = None, constraint: Any = None, **parameters: Any) -> RequestState:
    request = Request(
        prompt or [0], SamplingParameters(**{"temperature": 1.0, "seed": 0, **parameters}), constraint
    )
    return RequestState(0, request, 1, frozenset())


def drawn(logits: torch.Tensor, count: int = 400, **parameters: Any) -> set[int]:
    rows = [sequence(**{**parameters, "seed": seed}) for seed in range(count)]
    return set(draw(logits.repeat(count, 1), rows).tokens)


def one(logits: torch.Tensor, row: RequestState) -> DrawnTokens:
    return draw(logits.clone().unsqueeze(0), [row])


def test_top_k_top_p_and_min_p_keep_the_most_likely():
    assert drawn(LOGITS) == {0, 1, 2, 3}
    assert drawn(LOGITS, top_k=2) == {0, 1}
    assert drawn(LOGITS, top_p=0.5) == {0}
    assert drawn(LOGITS, top_p=0.51) == {0, 1}
    assert drawn(LOGITS, top_p=0.9) == {0, 1, 2}
    assert drawn(LOGITS, top_k=3, top_p=0.6) == {0, 1}
    assert drawn(LOGITS, top_k=99) == {0, 1, 2, 3}
    assert drawn(LOGITS, top_p=1e-9) == {0}
    assert drawn(LOGITS, min_p=0.2) == {0, 1, 2}
    assert drawn(LOGITS, min_p=1.0) == {0}


def test_a_huge_top_k_keeps_all_tokens_beside_a_small_one():
    rows = [sequence(top_k=top_k, seed=seed) for seed in range(50) for top_k in (1, 10**30)]
    tokens = draw(LOGITS.repeat(100, 1), rows).tokens
    assert set(tokens[::2]) == {0}
    assert set(tokens[1::2]) == {0, 1, 2, 3}


def test_with_alternatives_log_probabilities_are_the_models_own():
    changes = {"temperature": 0.3, "top_k": 2, "logit_bias": {3: 9.0}}
    found = draw(LOGITS.repeat(2, 1), [sequence(**changes), sequence(**changes, logprobs=2)])
    assert found.tokens == [3, 3]
    assert [math.exp(value) for value in found.logprobs] == pytest.approx([1.0, 0.05], abs=1e-3)
    assert found.tops[0] == ()
    assert [token for token, _ in found.tops[1]] == [0, 1]
    assert [math.exp(value) for _, value in found.tops[1]] == pytest.approx([0.5, 0.3])


def test_a_tiny_temperature_is_greedy_and_does_not_overflow():
    assert drawn(torch.tensor([1.0, 3.0, 2.0]), temperature=1e-30) == {1}
    assert drawn(torch.tensor([1.0, 3.0, 2.0]), temperature=1e-320) == {1}


def test_tokens_are_drawn_with_their_probabilities():
    rows = [sequence(seed=seed, temperature=0.7) for seed in range(4000)]
    counts = torch.bincount(torch.tensor(draw(LOGITS.repeat(4000, 1), rows).tokens), minlength=4) / 4000
    assert (counts - (LOGITS / 0.7).softmax(0)).abs().sum() < 0.03


def test_every_number_of_a_seed_is_another_point_and_points_are_spread_evenly():
    points = torch.tensor([uniform(seed, number) for seed in range(-50, 50) for number in range(100)])
    assert len(set(points.tolist())) == 10_000
    assert points.min() >= 0
    assert points.max() < 1
    assert (points.sort().values - torch.arange(10_000) / 10_000).abs().max() < 0.02


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}, {"temperature": 0.0}]), max_size=6
    )
)
def test_a_row_does_not_depend_on_the_other_rows(others: list[dict[str, Any]]):
    logits = torch.randn(len(others) + 1, 50, generator=torch.Generator().manual_seed(len(others)))
    mine = {"seed": 5, "top_k": 20, "top_p": 0.9, "logprobs": 2}
    together = draw(logits.clone(), [sequence(**mine), *(sequence(**other) for other in others)])
    alone = one(logits[0], sequence(**mine))
    assert (together.tokens[0], together.logprobs[0], together.tops[0]) == (
        alone.tokens[0],
        alone.logprobs[0],
        alone.tops[0],
    )


def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from():
    found = one(LOGITS, sequence(top_k=2, temperature=0.5))
    scaled = (LOGITS[:2] / 0.5).log_softmax(0).tolist()
    assert found.logprobs[0] == pytest.approx(scaled[found.tokens[0]])
    greedy = one(LOGITS, sequence(temperature=0.0, logprobs=1))
    assert greedy.logprobs[0] == pytest.approx(math.log(0.5))
    assert greedy.tops[0] == [(0, pytest.approx(math.log(0.5)))]


def test_penalties_lower_the_logits_of_tokens_that_occurred():
    row = sequence([1, 1, 3], temperature=0.0, repetition_penalty=2.0)
    logits = torch.tensor([1.0, 3.0, 1.6, -1.0])
    assert one(logits, row).tokens == [2]  # 3 / 2 < 1.6
    assert one(logits, row).logprobs == pytest.approx(
        [1.6 - float(torch.tensor([1.0, 1.5, 1.6, -2.0]).logsumexp(0))]
    )
    row = sequence([1], temperature=0.0, presence_penalty=1.0, frequency_penalty=0.5)
    assert row.counts is not None
    row.counts.update([1, 1])
    assert one(torch.tensor([1.1, 3.0, 0.9, 0.0]), row).tokens == [0]  # 3 - 1 - 2 * 0.5 = 1


def test_logit_bias_is_added():
    assert one(LOGITS, sequence(temperature=0.0, logit_bias={3: 10.0})).tokens == [3]
    assert drawn(LOGITS, logit_bias={0: -1000.0}) == {1, 2, 3}


class Only:
    def __init__(self, *allowed: int):
        self.allowed = allowed

    def mask(self) -> list[bool]:
        return [token in self.allowed for token in range(4)]

    def advance(self, token: int) -> None:
        assert token in self.allowed


def test_a_constraint_excludes_tokens_also_those_beyond_its_mask():
    wide = torch.cat((LOGITS, torch.tensor([9.0])))
    assert {one(wide, sequence(seed=seed, constraint=Only(1, 3))).tokens[0] for seed in range(200)} == {1, 3}
    assert one(wide, sequence(temperature=0.0, constraint=Only(1, 3))).tokens == [1]
    assert one(wide, sequence(constraint=Only())).tokens == [-1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(wrong: float, temperature: float):
    rows = [sequence(temperature=temperature), sequence(temperature=temperature, top_k=1)]
    found = draw(torch.tensor([[1.0, wrong, 2.0], [1.0, 3.0, 2.0]]), rows)
    assert found.tokens == [-1, 1]
    assert math.isnan(found.logprobs[0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_tokens": -1}, "max_tokens is .*; it must be 0 or more"),
        ({"temperature": -0.1}, "temperature is .*; it must be finite and 0 or more"),
        ({"temperature": math.nan}, "finite and 0"),
        ({"temperature": math.inf}, "temperature is .*; it must be finite"),
        ({"top_k": -1}, "top_k is .*; it must be 0 or more"),
        ({"top_p": 0.0}, "top_p is .*; it must be more than 0"),
        ({"min_p": 1.5}, "min_p is .*; it must be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is .*; it must be positive"),
        ({"presence_penalty": math.nan}, "presence_penalty is .*; it must be finite"),
        ({"frequency_penalty": math.inf}, "frequency_penalty is .*; it must be finite"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 is nan; it must be finite"),
        ({"seed": 2**63}, "64-bit integer"),
        ({"stop": "text"}, "stop is .*; it must be a list of strings"),
        ({"stop": [""]}, "that are not empty"),
        ({"logprobs": 101}, "logprobs is .*; it must be between 0 and 100"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        SamplingParameters(**parameters)

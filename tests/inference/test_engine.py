"""The engine computes what decoding by whole forward passes computes, whatever else it is doing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from danalab.errors import UserError
from danalab.inference import Completion, Engine, Request, SamplingParameters, TokenEvent
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from models.architectures import LENGTH, VARIANTS, VOCAB, tiny

PROMPTS = [
    *([3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]),
    *([9, 2, 11], [5], [3, 1, 4, 1, 7]),
]

every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(params=["native", "eager"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model() -> Decoder:
    return build_model(tiny("enoki"), seed=4)


def naive(model: Decoder, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding by whole forward passes."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


def requests(prompts: Sequence[Sequence[int]], **settings: Any) -> list[Request]:
    parameters = SamplingParameters(**{"max_tokens": 6, "temperature": 0, **settings})
    return [Request(prompt, parameters) for prompt in prompts]


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def run(engine: Engine) -> dict[int, list[TokenEvent]]:
    found: dict[int, list[TokenEvent]] = {}
    while engine.busy:
        for event in engine.step():
            found.setdefault(event.request_id, []).append(event)
    return found


@pytest.mark.sample(6)
@every_variant
def test_every_architecture_decodes_as_by_whole_forwards(config: ModelConfig):
    model = build_model(config, seed=4)
    want = [naive(model, prompt, 6) for prompt in PROMPTS]
    for settings in ({"backend": "native", "max_batch_size": 1}, {"backend": "native"}, {"backend": "eager"}):
        assert tokens(Engine(model, **settings).generate(requests(PROMPTS))) == want


def test_prompt_and_text_may_fill_the_context_exactly(model: Decoder, backend: str):
    prompt = [1, 2, 3, 4] * 5
    completion = Engine(model, backend=backend).generate(requests([prompt], max_tokens=4))[0]
    assert completion.tokens == naive(model, prompt, 4)
    assert completion.finish_reason == "length"
    assert Engine(model, backend=backend).generate(requests([[1] * LENGTH], max_tokens=0))[0] == Completion(
        [], [], "length"
    )


@pytest.mark.sample(1)
def test_requests_join_and_leave_between_steps(model: Decoder, backend: str):
    engine, draw = Engine(model, backend=backend, max_batch_size=3), random.Random(0)
    prompts = [[draw.randrange(VOCAB) for _ in range(draw.randrange(1, 15))] for _ in range(12)]
    counts = [draw.randrange(1, 9) for _ in prompts]
    found: dict[int, list[int]] = {}
    waiting = list(zip(prompts, counts, strict=True))
    while waiting or engine.busy:
        if waiting and draw.random() < 0.6:
            prompt, count = waiting.pop(0)
            engine.submit(requests([prompt], max_tokens=count)[0])
        for event in engine.step():
            found.setdefault(event.request_id, []).append(event.token)
    assert [found[number] for number in range(12)] == [
        naive(model, prompt, count) for prompt, count in zip(prompts, counts, strict=True)
    ]


def test_a_full_cache_preempts_the_youngest_request_and_loses_nothing(model: Decoder, backend: str):
    prompts = [[i, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14] for i in range(3)]
    engine = Engine(
        model, backend=backend, cache_tokens=48
    )  # three blocks: each sequence has one at first and needs two in the end
    assert tokens(engine.generate(requests(prompts, max_tokens=10))) == [naive(model, p, 10) for p in prompts]
    assert engine.scheduler.preemptions > 0
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def test_stop_tokens_end_a_text_and_are_reported(model: Decoder, backend: str):
    want = naive(model, [1, 2], 12)
    stop = want[-1]
    completion = Engine(model, backend=backend).generate(
        requests([[1, 2]], max_tokens=12, stop_tokens=(stop,))
    )[0]
    assert completion.tokens == want[: want.index(stop) + 1]
    assert completion.finish_reason == "stop"
    ending = Engine(model, backend=backend, end_tokens=(stop,))
    assert ending.generate(requests([[1, 2]], max_tokens=12))[0].tokens == completion.tokens


def test_a_cancelled_request_frees_its_place_at_once(model: Decoder, backend: str):
    engine = Engine(model, backend=backend, max_batch_size=1)
    first, second = (engine.submit(request) for request in requests([[1, 2], [9, 2]]))
    engine.step()
    assert engine.cancel(first)
    assert not engine.cancel(first)
    assert [event.token for event in run(engine)[second]] == naive(model, [9, 2], 6)
    pool = engine.scheduler.pool
    assert pool is not None
    assert pool.available == pool.n_blocks


def test_forced_tokens_become_part_of_the_text_and_are_not_reported(model: Decoder, backend: str):
    engine = Engine(model, backend=backend)
    number = engine.submit(requests([[1, 2]], max_tokens=4)[0])
    drawn = [event.token for event in engine.step()]
    engine.force(number, [7, 8, 9])
    drawn += [event.token for event in run(engine)[number]]
    text = [1, 2, drawn[0], 7, 8, 9]
    assert drawn == [naive(model, [1, 2], 1)[0], *naive(model, text, 3)]


def test_forced_tokens_beyond_the_context_are_refused(model: Decoder, backend: str):
    engine = Engine(model, backend=backend)
    number = engine.submit(requests([[1] * 10], max_tokens=14)[0])
    engine.step()
    assert not engine.force(number, [1] * 13)
    assert engine.force(number, [1] * 12)
    assert run(engine)[number][-1].finish_reason == "length"


def test_a_known_prefix_is_not_computed_again_except_in_another_scope(model: Decoder, backend: str):
    prompt = [5, 3] * 9
    engine = Engine(model, backend=backend)
    want = naive(model, prompt, 4)
    for scope, reused in (("a", 0), ("a", 16), ("b", 16), ("b", 32)):
        request = requests([prompt], max_tokens=4)[0]
        completion = engine.generate([Request(prompt, request.parameters, prefix_scope=scope)])[0]
        assert completion.tokens == want
        assert engine.scheduler.reused == reused
    other = Engine(model, backend=backend, prefix_reuse=False)
    assert tokens(other.generate(requests([prompt] * 2, max_tokens=4))) == [want, want]
    assert other.scheduler.reused == 0


def test_new_weights_are_used_after_reload(model: Decoder, backend: str):
    engine = Engine(model, backend=backend)
    engine.generate(requests(PROMPTS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7).add_(
                0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            )
    engine.reload()
    assert tokens(engine.generate(requests(PROMPTS))) == [naive(model, prompt, 6) for prompt in PROMPTS]


def test_seeded_text_is_independent_of_the_batch(model: Decoder, backend: str):
    parameters = SamplingParameters(max_tokens=12, temperature=1.0, seed=7)
    alone = Engine(model, backend=backend).generate([Request([1, 2, 3], parameters)])[0]
    crowd = requests(PROMPTS * 3, temperature=1.0)
    engine = Engine(model, backend=backend, max_batch_size=8)
    numbers, found = [], []
    for request in [*crowd[:7], Request([1, 2, 3], parameters), *crowd[7:]]:
        numbers.append(engine.submit(request))
        found += engine.step()
    while engine.busy:
        found += engine.step()
    mine = [event for event in found if event.request_id == numbers[7]]
    assert [event.token for event in mine] == alone.tokens
    assert [event.logprob for event in mine] == pytest.approx(alone.logprobs, abs=1e-5)


def test_a_model_that_has_diverged_fails_its_requests_and_not_the_engine(model: Decoder, backend: str):
    with torch.no_grad():
        model.token_embedding.weight[7] = torch.nan
    engine = Engine(model, backend=backend)
    good, bad = (engine.submit(request) for request in requests([[1, 2], [7, 2]]))
    found = run(engine)
    assert [(event.token, event.finish_reason) for event in found[bad]] == [(-1, "error")]
    assert len(found[good]) == 6
    with pytest.raises(UserError, match="has diverged"):
        engine.generate(requests([[7]]))
    assert not engine.busy


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([1] * 20, {"max_tokens": 5}, "a prompt of 20 tokens and max_tokens 5 are 25 together.*seq_len 24"),
        ([], {}, "the prompt is empty"),
        ([1, 61], {}, "prompt token id 61 is outside the model's vocabulary of 61"),
        ([-1, 5], {}, "prompt token id -1 is outside"),
        ([1], {"logit_bias": {61: 1.0}}, "logit_bias: token id 61"),
        ([1], {"stop": ["x"]}, "needs an engine with a tokenizer"),
        ([1] * 10, {"max_tokens": 8}, "may need 18 tokens of cache, and there are 16"),
    ],
)
def test_bad_requests_are_refused_when_they_are_submitted(
    model: Decoder, prompt: list[int], settings: dict[str, Any], message: str
):
    with pytest.raises(UserError, match=message):
        Engine(model, cache_tokens=16).submit(requests([prompt], **settings)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"cache_tokens": 0}, "cache_tokens is 0"),
        ({"backend": "nativ"}, "unknown back end 'nativ' .did you mean 'native'"),
    ],
)
def test_bad_settings_of_the_engine_are_refused(model: Decoder, settings: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        Engine(model, **settings)

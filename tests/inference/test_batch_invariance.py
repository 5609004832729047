"""In the native back end tokens and log-probabilities of a request are the same to the last bit in any company."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from danalab.inference import Completion, Engine, Request, SamplingParameters
from danalab.models import build_model
from danalab.models.architectures import ARCHITECTURES
from danalab.models.decoder import Decoder
from models.architectures import VOCAB, tiny
from targets import TARGETS, compiled_for

CONFIGS = {arch: tiny(arch, seq_len=160) for arch in ARCHITECTURES}
CONFIGS["linear-attention"] = tiny("qwen3next", n_layers=4, full_attention_interval=4, seq_len=160)
CONFIGS["grouped"] = tiny("llama", n_kv_heads=2, seq_len=160)


def crowd(count: int) -> list[Request]:
    """Requests of all kinds, some with a common beginning longer than a piece of a prompt."""
    draw = random.Random(1)
    common = [draw.randrange(VOCAB) for _ in range(90)]
    found = []
    for number in range(count):
        prompt = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 12))]
        settings: dict[str, Any] = draw.choice([{}, {"top_k": 7}, {"top_p": 0.8}, {"temperature": 0.0}])
        settings = {
            "max_tokens": draw.randrange(3, 20),
            "temperature": 1.0,
            "seed": number,
            "logprobs": 2,
            **settings,
        }
        found.append(Request((common if number % 2 else []) + prompt, SamplingParameters(**settings)))
    return found


def engine(model: Decoder, **settings: Any) -> Engine:
    return Engine(model, backend="native", **settings)


def in_order(found: list[Completion], order: list[int]) -> list[Completion]:
    return [completion for _, completion in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


@pytest.mark.sample(2)
@pytest.mark.parametrize("arch", CONFIGS)
def test_a_request_is_bitwise_the_same_alone_and_in_any_batch(arch: str):
    model, requests = build_model(CONFIGS[arch], seed=4), crowd(7)
    alone = [engine(model, prefix_reuse=False).generate([request])[0] for request in requests]
    order = list(range(len(requests)))
    random.Random(2).shuffle(order)
    for settings in ({}, {"max_batch_size": 3}, {"prefix_reuse": False}, {"cache_tokens": 256}):
        together = engine(model, **settings)
        found = together.generate([requests[number] for number in order])
        assert in_order(found, order) == alone, settings
    again = engine(model)
    for request, want in zip(requests, alone, strict=True):
        assert again.generate([request])[0] == want  # prefixes of the requests before are reused
    if not (model.config.linear_attention or model.config.architecture.oscillators):
        assert again.scheduler.reused > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_request_is_bitwise_the_same_on_every_target(target: str):
    with compiled_for(target):
        test_a_request_is_bitwise_the_same_alone_and_in_any_batch("qwen3next")


def test_the_number_of_threads_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch):
    from danalab.inference import native_decoding as backend

    monkeypatch.setattr(backend, "PRODUCTS_PER_THREAD", 1)
    model = build_model(CONFIGS["qwen3next"], seed=4)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(engine(model).generate(crowd(3)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]

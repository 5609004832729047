"""Greedy decoding by the engine, for tests of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danalab.inference import Engine, Request, SamplingParameters
from danalab.models.decoder import Decoder


def greedy(model: Decoder, prompt: Sequence[int], max_tokens: int, **engine: Any) -> list[int]:
    parameters = SamplingParameters(max_tokens=max_tokens, temperature=0)
    return Engine(model, **engine).generate([Request(prompt, parameters)])[0].tokens

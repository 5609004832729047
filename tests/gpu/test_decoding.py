"""The engine on a device: the tokens that the CPU decodes, greedy and drawn, in batches of any lengths."""

from __future__ import annotations

import pytest
import torch

from danalab.inference import Engine, Request, SamplingParameters
from danalab.inference.generator import TextGenerator
from danalab.models import build_model
from models.architectures import tiny

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3, 2], [9, 2, 11]]
SETTINGS = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 5},
    "truncated": {"seed": 5, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "adjusted": {"seed": 5, "repetition_penalty": 1.3, "logit_bias": {7: 2.0}, "logprobs": 2},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["enoki", "qwen3", "resonance", "qwen3next"])
def test_the_engine_decodes_what_the_cpu_decodes(device, arch):
    texts = {}
    for place in ("cpu", device.type):
        model = build_model(tiny(arch), seed=4, device=place).eval()
        requests = [
            Request(prompt, SamplingParameters(max_tokens=8, **settings))
            for settings in SETTINGS.values()
            for prompt in PROMPTS
        ]
        engine = Engine(model, backend="eager", max_batch_size=8)
        texts[place] = [(done.tokens, done.logprobs) for done in engine.generate(requests)]
    for (tokens, logprobs), (want, want_logprobs) in zip(texts[device.type], texts["cpu"], strict=True):
        assert tokens == want
        assert logprobs == pytest.approx(want_logprobs, abs=1e-3)


def test_a_model_in_bfloat16_is_decoded(device):
    model = build_model(tiny("qwen3", n_kv_heads=2), seed=4, device=device, dtype=torch.bfloat16).eval()
    parameters = SamplingParameters(max_tokens=8, temperature=0)
    done = Engine(model, max_batch_size=4).generate([Request(prompt, parameters) for prompt in PROMPTS])
    assert [len(each.tokens) for each in done] == [8] * 4


def test_text_is_generated(device):
    from danalab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer("bytes")
    texts = []
    for place in ("cpu", device.type):
        model = build_model(tiny("enoki", vocab_size=tokenizer.vocab_size), seed=4, device=place).eval()
        texts.append(
            "".join(TextGenerator(model, tokenizer, backend="eager").stream("To be", max_tokens=8, seed=1))
        )
    assert texts[0] == texts[1]

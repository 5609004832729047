"""The log-probabilities of the engine, which are stored, and those of the trainer."""

import copy

import pytest
import torch

from danalab.data.tokenizers import ByteTokenizer
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models import ModelConfig, build_model
from danalab.post.policy_losses import target_log_probs

ROUNDING = 2.0**-23
"""A unit in the last place of 1 in float32."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["enoki", pytest.param("qwen3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_the_engine_and_the_trainer_differ_from_float64_by_rounding_alone(arch, backend):
    model = build_model(ModelConfig(arch, 128, 4, 4, 32, 256, vocab_size=320, seq_len=64), seed=1).eval()
    exact = copy.deepcopy(model).double()
    engine = Engine(model, ByteTokenizer(), end_tokens=(), max_batch_size=4, backend=backend)
    prompts = [list(range(number, 9 + 2 * number)) for number in range(4)]
    requests = [
        Request(each, SamplingParameters(max_tokens=40, temperature=1, seed=number))
        for number, each in enumerate(prompts)
    ]
    for prompt, answer in zip(prompts, engine.generate(requests), strict=True):
        ids = torch.tensor([[*prompt, *answer.tokens]])
        with torch.no_grad():
            trained, oracle = (
                target_log_probs(each(ids[:, :-1])[..., : ByteTokenizer.n_tokens], ids[:, 1:])[
                    0, len(prompt) - 1 :
                ]
                for each in (model, exact)
            )
        stored = torch.tensor(answer.logprobs, dtype=torch.float64)
        assert (trained - oracle).abs().max() < 64 * ROUNDING
        assert (stored - oracle).abs().max() < 64 * ROUNDING
        assert (stored - trained).abs().mean() < 16 * ROUNDING  # train/mismatch

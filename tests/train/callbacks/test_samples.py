"""Text samples during training: the same prompts at each evaluation, and the run is what it is without them."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.open import open_run


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def weights(folder):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])


def test_each_evaluation_continues_each_prompt_and_changes_no_bit_of_the_run(tiny, tmp_path):
    plain = train(tiny(run_dir=tmp_path / "plain"))
    folder = train(tiny(sample_prompts=("the cat", ""), document_mask=True, run_dir=tmp_path / "masked"))
    assert [(row["step"], row["prompt"]) for row in samples(folder)] == [
        (10, "the cat"), (10, ""), (20, "the cat"), (20, ""),
    ]  # fmt: skip
    assert all(isinstance(row["text"], str) for row in samples(folder))
    sampled = train(tiny(sample_prompts=("the cat",), run_dir=tmp_path / "sampled"))
    assert torch.equal(weights(sampled), weights(plain))


@pytest.mark.slow
def test_a_resumed_run_repeats_no_sample(tiny, tmp_path):
    whole = train(tiny(sample_prompts=("the",), run_dir=tmp_path / "whole"))
    for steps in (12, 20):
        folder = train(tiny(sample_prompts=("the",), iterations_to_run=steps))
    assert samples(folder) == samples(whole)


def test_a_prompt_that_fills_the_context_is_refused_before_training(tiny):
    with pytest.raises(UserError, match=r"--sample-prompts: 'x+.*fills the context of 16 tokens"):
        train(tiny(sample_prompts=("x" * 50,)))

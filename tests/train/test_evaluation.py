"""Validation numbers depend on the model and the windows, and on nothing else."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.train import train
from danalab.train.evaluation import ValidationLoss, evaluate_run
from danalab.train.run.open import open_run

VOCAB, EOS, LENGTH, COUNT = 64, 7, 16, 13


class Windows:
    def __init__(self):
        draw = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, VOCAB, (COUNT, LENGTH + 1), generator=draw)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, which: slice):
        return self.tokens[which, :-1], self.tokens[which, 1:]


@pytest.fixture(scope="module")
def model():
    return build_model(ModelConfig("enoki", 32, 2, 2, 16, 64, VOCAB, LENGTH))


def evaluator(batch_size: int = 4, n_fixed: int = 5, n_final: int = 0) -> ValidationLoss:
    lengths = np.arange(1, VOCAB + 1)
    lengths[EOS] = 0
    return ValidationLoss(
        Windows(),
        lengths,
        batch_size=batch_size,
        n_fixed=n_fixed,
        n_final=n_final,
        autocast=contextlib.nullcontext,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("count", [5, COUNT])
def test_micro_batch_changes_nothing(model, count):
    results = [evaluator(batch_size=size).spread(model, count) for size in (1, 3, 13)]
    for result in results[1:]:
        assert result.loss == pytest.approx(results[0].loss, rel=1e-6)
        assert result.bpb == pytest.approx(results[0].bpb, rel=1e-6)
        assert result.tokens == results[0].tokens


def test_full_is_the_plain_cross_entropy_and_bits_per_byte_of_text(model):
    result = evaluator().full(model)
    inputs, targets = Windows()[0:COUNT]
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(
            model(inputs).flatten(0, 1), targets.flatten(), reduction="none"
        )
    text = targets.flatten() != EOS
    n_bytes = int((targets.flatten()[text] + 1).sum())
    assert result.tokens == COUNT * LENGTH
    assert result.loss == pytest.approx(float(nats.double().mean()), rel=1e-6)
    assert result.bpb == pytest.approx(float(nats[text].double().sum()) / math.log(2) / n_bytes, rel=1e-6)
    with torch.no_grad():
        assert result.accuracy == float((model(inputs).argmax(-1) == targets).double().mean()) > 0


class Uniform(torch.nn.Module):
    def token_losses(self, tokens, targets, *, ignore_index, correct):
        return torch.nn.functional.cross_entropy(
            torch.zeros(*targets.shape, VOCAB).flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)


def test_a_model_that_knows_nothing_has_the_logarithm_of_the_vocabulary_everywhere():
    result = evaluator().full(Uniform())
    assert result.loss == pytest.approx(math.log(VOCAB), rel=1e-7)


def test_the_fixed_set_is_spread_over_the_split(model):
    read = []

    class Read(Windows):
        def __getitem__(self, which: slice):
            read.append(which.start)
            return super().__getitem__(which)

    spread = evaluator(n_fixed=5)
    spread._windows = Read()
    spread.spread(model, spread.n_fixed)
    assert read == [0, 2, 5, 7, 10]
    assert evaluator(n_fixed=0).n_fixed == evaluator(n_fixed=99).n_fixed == COUNT


def test_the_last_evaluation_has_a_set_of_its_own_and_says_its_share(model):
    bounded = evaluator(n_fixed=5, n_final=8)
    found, last = (bounded.evaluate(model, 3, bool, final=final) for final in (False, True))
    assert found.keys() == {"val/loss", "val/bpb", "val/accuracy"}
    assert last["val/share"] == 8 / COUNT
    assert last["val/tokens"] == 8 * LENGTH
    whole = evaluator(n_fixed=5).evaluate(model, 3, bool, final=True)
    assert (whole["val/share"], whole["val/loss"]) == (1.0, evaluator().full(model).loss)


def test_a_stop_request_ends_it_early_and_leaves_the_model_training(model):
    model.train()
    answers = iter([False, True])
    assert evaluator(batch_size=4).full(model, lambda: next(answers)) is None
    assert model.training


@pytest.mark.slow
def test_evaluating_a_run_gives_its_final_loss_at_any_batch_size(tiny):
    folder = train(tiny())
    summary = open_run(folder).summary
    assert summary is not None
    for batch_size in (1, 5):
        result = evaluate_run(folder, batch_size=batch_size)
        assert (result.step, result.tokens) == (20, summary["val/tokens"])
        assert result.loss == pytest.approx(summary["val/loss"], rel=1e-6)
        assert result.bpb == pytest.approx(summary["val/bpb"], rel=1e-6)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_evaluating_in_batches_of_nothing_is_refused(tiny, batch_size):
    folder = train(tiny(iterations_to_run=1))
    with pytest.raises(UserError, match=f"--batch-size {batch_size}: must be at least 1"):
        evaluate_run(folder, batch_size=batch_size)

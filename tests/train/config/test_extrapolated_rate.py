"""The note on a learning rate whose law was fitted at another batch."""

import pytest

from danalab.train.config.resolve import resolve
from danalab.train.config.rules import RateRule, Rules
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words


def note(**settings):
    """The note of a run with sequences of 2,048 tokens, or None."""
    notes = resolve(TrainConfig(**{"heads": 4, "seq_len": 2048, "iterations": 100, **settings}), Words()).notes
    return next((each for each in notes if "fitted at another batch" in each), None)


@pytest.mark.parametrize(("opt", "batch"), [("dana-star-mk4", 16), ("adana", 64), ("ademamix", 512), ("lion", 64)])
def test_a_law_at_another_batch_is_called_an_extrapolation(opt, batch):
    assert f"another batch than {batch} sequences" in note(opt=opt, global_batch=batch)
    assert note(opt=opt, global_batch=batch, lr_multiplier=0.5) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"opt": "dana-star-mk4", "global_batch": 32},
        {"opt": "dana-star-mk4", "global_batch": 512},
        {"opt": "adana", "global_batch": 16},  # the factor for small batches adapts it
        {"opt": "muon", "global_batch": 64},  # not fitted
        {"opt": "adamw", "arch": "resonance", "heads": None, "size": "small", "global_batch": 64},
        {"opt": "dana-star-mk4", "global_batch": 64, "lr": 1e-3},
    ],
)
def test_other_rates_have_no_such_note(settings):
    assert note(**settings) is None


@pytest.mark.parametrize(("batch", "noted"), [(16, False), (12, True)])
def test_the_batch_of_a_law_from_a_file_counts(tmp_path, batch, noted):
    rule = RateRule(arch="enoki", opt="adana", global_batch=16, a=2.0, b=10.0, d=-0.5)
    Rules(learning_rate=(rule,)).write(tmp_path / "rules.yaml")
    assert (note(opt="adana", global_batch=batch, rules=tmp_path / "rules.yaml") is not None) == noted

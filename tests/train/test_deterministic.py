"""--deterministic: the same command twice gives the same bits, compiled or not, on one process or two."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from danalab.train.run.open import open_run
from danalab.train.trainer import run_training
from distributed.ranks import run_ranks


@pytest.fixture(autouse=True)
def as_before():
    """The switch is the process's; other tests do without."""
    yield
    torch.use_deterministic_algorithms(False)


def weights(folder):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])


def trained_twice(config, tmp_path, ranks=1):
    found = []
    for name in ("one", "two"):
        own = dataclasses.replace(config, run_dir=tmp_path / name)
        if ranks > 1:
            assert (
                run_ranks(lambda rank, size, own=own: run_training(own).status, ranks) == ["finished"] * ranks
            )
        else:
            assert run_training(own).status == "finished"
        found.append(weights(tmp_path / name))
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "given",
    [
        {"arch": "enoki"},
        {"arch": "gpt", "opt": "adamw", "activation_checkpointing": "full"},
        {"arch": "moe", "opt": "d-muon"},
        {"arch": "qwen3", "opt": "sophia", "document_mask": True},
        {"arch": "resonance", "opt": "dana-star-mk4"},
    ],
    ids=lambda given: given["arch"],
)
def test_a_run_repeats_itself(tiny, tmp_path, given):
    one, two = trained_twice(
        tiny(deterministic=True, iterations=6, n_layers=1, ckpt_interval=0, **given), tmp_path
    )
    assert torch.equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["ddp", "fsdp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zero", "diloco"))]
)
def test_a_run_of_two_ranks_repeats_itself(tiny, tmp_path, backend):
    more = {"diloco_steps": 2} if backend == "diloco" else {}
    config = tiny(
        deterministic=True,
        iterations=4,
        n_layers=1,
        ckpt_interval=0,
        distributed_backend=backend,
        batch_size=2,
        **more,
    )
    one, two = trained_twice(config, tmp_path, ranks=2)
    assert torch.equal(one, two)


@pytest.mark.slow  # the compiler takes its time
def test_a_compiled_run_repeats_itself(tiny, tmp_path):
    torch.compiler.reset()
    config = tiny(deterministic=True, iterations=6, n_layers=2, ckpt_interval=0, compile=True)
    one, two = trained_twice(config, tmp_path)
    assert torch.equal(one, two)

"""Models that are trained at once on a GPU are those that are trained alone, on the documents of the language."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from danalab.data.sources.synthetic import Language
from danalab_bench import gpu_runs
from danalab_bench.gpu_runs import Job, OutOfTimeError, Replicas, build, documents, train_job

JOB = Job("adana", 16, 1, 2, 2, 1.0, 1.0, (0, 5), tokens_per_param=0.004)


@pytest.fixture(autouse=True)
def short_documents(monkeypatch):
    monkeypatch.setattr(gpu_runs, "LANGUAGE", Language(document_tokens=24))


def test_the_same_numbers_give_the_documents_of_the_language():
    language = Language(words=40, answers=11, levels=3, document_tokens=40, seed=3, questions=0.5)
    u = np.stack([language._uniform(i) for i in range(50)])
    assert np.array_equal(documents(language, torch.as_tensor(u)), language.documents(0, 50))


@pytest.mark.parametrize("opt", ["adana", "dana-star-mk4", "muon", "adamw"])
def test_models_at_once_learn_what_each_learns_alone(opt):
    job = replace(JOB, opt=opt)
    together = train_job(job, "cpu", "eager", time.time() + 600, held_out=4, chunk=16)
    for row in together:
        (alone,) = train_job(replace(job, seeds=(row["seed"],)), "cpu", "eager", time.time() + 600, held_out=4, chunk=8)
        assert row["steps"] > 1
        assert row["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert {key: row[key] for key in ("opt", "lr", "tokens", "seed")} == {
            key: alone[key] for key in ("opt", "lr", "tokens", "seed")
        }
    assert together[0]["loss"] != together[1]["loss"]


def test_each_model_is_clipped_by_its_own_norm():
    replicas, _ = build(JOB, "cpu")
    rows = next(gpu_runs.rows_of(JOB.seeds, 2, "cpu"))
    replicas.gradients(rows[..., :-1], rows[..., 1:].contiguous(), 0.01)
    grads = torch.cat([p.grad.reshape(2, -1) for p in replicas.parameters], dim=1)
    assert torch.allclose(grads.norm(dim=1), torch.full((2,), 0.01), rtol=1e-3)


def test_a_job_that_cannot_end_in_time_says_so_early():
    with pytest.raises(OutOfTimeError, match="steps take"):
        train_job(replace(JOB, tokens_per_param=0.4, seeds=(0,)), "cpu", "eager", time.time() + 0.5, chunk=64)


def test_ways_are_timed_and_one_that_fails_is_named(monkeypatch):
    def broken(replicas: Replicas, clip: float, rows: torch.Tensor):
        raise RuntimeError("no graph\nmore")

    monkeypatch.setitem(gpu_runs.WAYS, "graph", broken)
    found = gpu_runs.time_ways(replace(JOB, seeds=(0,)), "cpu", ["eager", "graph"], 0.01)
    assert found["eager"]["tokens_per_second"] > 0
    assert found["graph"] == {"error": "RuntimeError: no graph"}

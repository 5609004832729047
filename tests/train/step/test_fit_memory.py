"""The largest micro-batch that fits: by the estimate, and by trials."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from danalab.cli.app import main
from danalab.hardware import memory_gib
from danalab.scaling.plan import plan
from danalab.train.step.memory import LARGEST, USED, MemoryFit, largest

PLAN = ["plan", "--heads", "12", "--fit-memory", "--json"]


@given(limit=st.integers(0, LARGEST), guess=st.integers(1, LARGEST))
def test_the_search_ends_at_the_limit_within_a_sixteenth(limit, guess):
    trials = []

    def fits(n):
        trials.append(n)
        return n <= limit

    found = largest(fits, guess)
    assert found <= limit < found + max(1, found // 16) + 1
    assert found == 0 or found in trials
    assert len(trials) == len(set(trials)) <= 40


def test_a_good_guess_needs_few_trials():
    trials = []
    assert largest(lambda n: trials.append(n) or n <= 100, 96) >= 94
    assert len(trials) <= 6


def fitted(capsys, *words):
    assert main([*PLAN, *words]) == 0
    return json.loads(capsys.readouterr().out)["fit"]


@pytest.mark.parametrize("gpu", ["a100", "l4", "4090"])
def test_the_estimate_fills_the_memory_of_an_accelerator(capsys, gpu):
    fit = fitted(capsys, "--gpu", gpu)
    planned = plan("enoki", "adana", 12)
    budget = USED * fit["limit_gib"]
    assert memory_gib(planned, fit["micro_batch"]) <= budget < memory_gib(planned, fit["micro_batch"] + 1)
    assert fit["tried"] is False


def test_float32_on_a_cpu_fits_about_half(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("danalab.train.step.memory.host_memory", lambda: 24e9)
    exact, short = fitted(capsys), fitted(capsys, "--gpu", "l4")
    assert exact["limit_gib"] == short["limit_gib"]
    assert 0.45 < exact["micro_batch"] / short["micro_batch"] < 0.6


def test_a_global_batch_is_divided_by_what_fits(capsys):
    fit = fitted(capsys, "--gpu", "l4", "--global-batch", "512", "--nproc", "4")
    assert fit["batch_size"] <= fit["micro_batch"] < 2 * fit["batch_size"]
    assert fit["batch_size"] * fit["acc_steps"] * 4 == 512
    assert MemoryFit(7, 1.0, 2.0, "x", tried=False).division(30) == (6, 5)


def test_what_does_not_fit_at_all_is_refused_in_one_line(capsys):
    assert main(["plan", "--heads", "128", "--fit-memory", "--gpu", "l4"]) == 2
    assert "not even a micro-batch of 1 x 2048 tokens fits in the 22 GiB of L4" in capsys.readouterr().err


def test_the_table_says_how_it_was_found(capsys):
    assert main(["plan", "--heads", "12", "--fit-memory", "--gpu", "h100", "--global-batch", "64"]) == 0
    said = capsys.readouterr().out
    assert "GiB of H100 (estimate)" in said
    assert "for 64 sequences a rank: --batch-size" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_filled_by_trials(capsys):
    fit = fitted(capsys)
    assert fit["tried"]
    assert 0.5 * fit["limit_gib"] < fit["memory_gib"] <= fit["limit_gib"]

"""`danalab bench parallel`: every mode trains the same model and gives times and memory."""

from __future__ import annotations

import json

import pytest

from danalab.cli.app import main
from danalab_bench.verbs import ParallelFlags

SMALL = ["--heads=2", "--global-batch=4", "--seq-len=16", "--vocab-size=64", "--steps=10", "--rounds=1", "--threads=1"]


@pytest.mark.slow
def test_each_mode_has_a_time_a_rate_and_memory(capsys):
    modes = ["single", "zero", "fsdp, tp"]
    assert main(["bench", "parallel", *SMALL, "--modes", *modes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["modes"]) == modes
    for row in found["modes"].values():
        assert row["seconds"]["median"] > 0
        assert row["tokens_per_second"]["median"] == pytest.approx(64 / row["seconds"]["median"], rel=0.3)
        assert row["memory_gib"]["median"] > 0.05
    assert found["modes"]["single"]["time_over_reference"]["median"] == 1


@pytest.mark.slow
def test_an_unknown_mode_and_a_failed_job_end_in_one_line(capsys):
    assert main(["bench", "parallel", *SMALL, "--modes", "fsd"]) == 2
    assert "unknown mode 'fsd'" in capsys.readouterr().err
    assert main(["bench", "parallel", *SMALL, "--modes", "single", "--arch", "enokki"]) == 2
    error = capsys.readouterr().err
    assert "single: danalab train ended with exit code 2" in error
    assert "enoki" in error


def test_heads_that_ranks_do_not_divide_are_refused_before_any_job(capsys):
    assert main(["bench", "parallel", "--heads", "3", "--modes", "fsdp, tp"]) == 2
    assert capsys.readouterr().err == "danalab: error: --heads 3: tensor parallelism needs a multiple of --nproc 2\n"


def test_the_default_size_fits_every_mode():
    flags = ParallelFlags()
    assert flags.heads % flags.nproc == 0

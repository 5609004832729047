"""`danalab bench gpu` and scripts/gpu_check.sh: what fails, hangs or is missing costs the rest nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from danalab.cli.app import main
from danalab.files import write_json
from danalab_bench import gpu_check
from danalab_bench.verbs import GPU_SECONDS

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.sh"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.mark.slow
def test_every_section_runs_on_a_cpu_at_tiny_sizes(tmp_path, capsys):
    """No misspelling waits for the first GPU."""
    file = tmp_path / "new" / "gpu.json"
    assert main(["bench", "gpu", "--device", "cpu", "--quick", "--seconds", "3000", "--output", str(file)]) == 0
    out = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert list(found["sections"]) == list(GPU_SECONDS)
    for part in found["sections"].values():
        assert part["ended"] == "done"
        assert part["rows"]
        for row in part["rows"]:
            assert row["task"] in out
    assert found["machine"]["torch"] == torch.__version__
    assert "failed" not in out


def test_every_section_has_a_time_limit_and_all_fit_into_six_minutes():
    from danalab_bench.gpu_sections import SECTIONS

    assert list(SECTIONS) == list(GPU_SECONDS)
    assert sum(GPU_SECONDS.values()) <= 360


def test_a_section_that_is_lost_leaves_its_rows_and_the_other_sections(monkeypatch):
    def run(arguments, seconds, say):
        name, file = arguments[:2]
        write_json(file, {"machine": {"gpu": "some"}, "rows": [{"task": "a", "ms": 1.0}, {"task": "b", "error": "no"}]})
        return "done" if name == "decode" else f"cut off after {seconds:.0f} s"

    monkeypatch.setattr(gpu_check, "_run", run)
    kept = []
    found = gpu_check.measure(
        [("optim", 3.0), ("decode", 4.0)], "cuda", False, lambda line: None, lambda f: kept.append(len(f["sections"]))
    )
    assert kept == [1, 2]
    assert [len(part["rows"]) for part in found["sections"].values()] == [2, 2]
    assert found["machine"] == {"gpu": "some"}
    assert gpu_check.failures(found) == ["optim: cut off after 3 s", "optim, b: no", "decode, b: no"]


def test_a_process_that_hangs_is_ended_and_one_that_dies_is_named(monkeypatch):
    lines = []
    monkeypatch.setattr(gpu_check, "PROCESS", ("-c", "print('a row', flush=True); import time; time.sleep(60)"))
    assert gpu_check._run([], 0.5, lines.append) == "cut off after 0 s"
    monkeypatch.setattr(gpu_check, "PROCESS", ("-c", "import os; os.abort()"))
    assert gpu_check._run([], 30.0, lines.append) == "failed with exit code -6"


def test_a_task_that_fails_is_a_row_and_the_next_one_follows(monkeypatch, tmp_path):
    from danalab_bench import gpu_sections

    def tasks(device, quick):
        yield "first", lambda: 1 / 0
        yield (
            "second",
            lambda: {"batch": 1, "tokens_per_second": 2.0, "milliseconds_per_step": 3.0, "weights_gb_per_s": 4},
        )

    monkeypatch.setitem(gpu_sections.SECTIONS, "decode", tasks)
    monkeypatch.setattr(sys, "argv", ["process", "decode", str(tmp_path / "rows.json"), "cpu", "quick"])
    gpu_sections.main()
    first, second = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert first["error"] == "ZeroDivisionError: division by zero"
    assert second["tokens_per_second"] == 2.0


@without_gpu
def test_without_a_gpu_the_benchmark_is_refused_in_one_line(capsys):
    assert main(["bench", "gpu"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert main(["bench", "gpu", "--device", "cpu", "--sections", "decod"]) == 2
    assert "did you mean 'decode'" in capsys.readouterr().err


def test_missing_packages_are_named_by_the_script(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho missing pydantic cachetools\n")
    python.chmod(0o755)
    done = subprocess.run([SCRIPT], env={**os.environ, "PYTHON": str(python)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.startswith("gpu-check: packages are missing: pydantic cachetools")


@pytest.mark.slow
@without_gpu
def test_without_a_gpu_the_script_runs_the_cpus_part_and_says_what_is_missing():
    done = subprocess.run([SCRIPT], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith("only the CPU's part of the tests was run, nothing was timed")

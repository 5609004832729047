"""`danalab bench gpu` and scripts/gpu_check.sh: what fails, hangs, is late or is missing costs the rest nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import build_gpu
from danalab.cli.app import main
from danalab.files import write_json
from danalab_bench import gpu_check, gpu_sections, gpu_shakespeare
from danalab_bench.gpu_check import SECTIONS
from danalab_bench.gpu_pretend import pretend_gpu

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
SPEED = {"batch": 1, "tokens_per_second": 2.0, "milliseconds_per_step": 3.0, "weights_gb_per_s": 4}


@pytest.mark.slow
def test_a_dry_run_executes_every_section_and_fills_the_page(tmp_path, capsys):
    """No misspelling waits for the first GPU."""
    file = tmp_path / "new" / "check.json"
    assert main(["bench", "gpu", "--dry-run", "--output", str(file)]) == 0
    out = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert list(found["sections"]) == list(SECTIONS)
    for part in found["sections"].values():
        assert part["ended"] == "done"
        assert part["rows"]
        assert all(row["task"] in out for row in part["rows"])
    assert found["machine"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert found["sections"]["tests"]["rows"][0]["skipped"] == 0
    assert "failed" not in out
    page = build_gpu.refresh(build_gpu.PAGE.read_text(encoding="utf-8"), file.parent)
    assert "a dry run on a CPU, whose numbers mean nothing" in page


def test_a_slice_of_the_dry_run_has_the_ways_of_a_gpu(tmp_path, monkeypatch, capsys):
    """Kernel, capture, replay, events: the lines that a GPU runs, with results."""
    monkeypatch.setattr(gpu_sections, "CONTENDERS", ("adana:graph",))
    monkeypatch.setattr(sys, "argv", ["process", "optim", str(tmp_path / "rows.json"), "dry", str(time.time() + 600)])
    gpu_sections.main()
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["task"] for row in rows] == ["0.02M adana:graph"]
    assert all("error" not in row and row["ms"]["median"] > 0 for row in rows), rows
    assert "0.02M adana:graph" in capsys.readouterr().out


def test_the_pretended_gpu_tells_host_from_device():
    with pretend_gpu():
        host = torch.arange(6.0).reshape(2, 3).requires_grad_()
        device = host.to("cuda")
        assert (host.device.type, device.device) == ("cpu", torch.device("cuda", 0))
        assert device.is_cuda
        assert not host.is_cuda
        y = (device * 2)[1:].sum()
        assert y.is_cuda
        y.backward()
        assert host.grad is not None
        assert host.grad.device.type == "cpu" or host.grad.is_cuda  # made by the engine
        assert y.detach().cpu().numpy() == 24
        with pytest.raises(TypeError, match="numpy"):
            device.detach().numpy()
        assert torch.ones(2).pin_memory().is_pinned()
        graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            z = x + 1
        x.fill_(5)
        graph.replay()
        assert z.tolist() == [6, 6, 6]
    assert torch.cuda.is_available() == (torch.version.cuda is not None and torch.cuda.device_count() > 0)


def test_sections_run_in_the_order_of_their_worth_and_those_that_do_not_fit_are_dropped(monkeypatch):
    clock, begun = [0.0], []
    monkeypatch.setattr(gpu_check, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: 0.0))

    def run(arguments, seconds, say):
        begun.append((arguments[0], seconds))
        clock[0] += seconds
        return "done"

    monkeypatch.setattr(gpu_check, "run", run)
    kept = []
    found = gpu_check.measure(tuple(SECTIONS), 470, False, lambda line: None, lambda f: kept.append(len(f["sections"])))
    assert begun == [("tests", 200), ("optim", 80), ("train", 110), ("decode", 40), ("checkpoint", 35)]
    assert kept == [1, 2, 3, 4, 5]
    assert found["sections"]["resonance"]["ended"] == "dropped: 0 s were left"
    assert gpu_check.failures(found) == []
    begun.clear()
    gpu_check.measure(tuple(SECTIONS), 60, False, lambda line: None, lambda f: None)
    assert [name for name, _ in begun] == ["optim"], "the tests need more; what is left is too little for the others"


def test_a_section_that_is_lost_leaves_its_rows_and_the_other_sections(monkeypatch):
    def run(arguments, seconds, say):
        name, file = arguments[:2]
        write_json(file, {"machine": {"gpu": "some"}, "rows": [{"task": "a", "ms": 1.0}, {"task": "b", "error": "no"}]})
        return "done" if name == "decode" else f"cut off after {seconds:.0f} s"

    monkeypatch.setattr(gpu_check, "run", run)
    found = gpu_check.measure(("optim", "decode"), 400, False, lambda line: None, lambda f: None)
    assert [len(part["rows"]) for part in found["sections"].values()] == [2, 2]
    assert found["machine"] == {"gpu": "some"}
    assert gpu_check.failures(found) == ["optim: cut off after 80 s", "optim, b: no", "decode, b: no"]


def test_a_process_that_hangs_is_ended_and_one_that_dies_is_named(monkeypatch):
    lines = []
    monkeypatch.setattr(gpu_check, "PROCESS", ("-c", "print('a row', flush=True); import time; time.sleep(60)"))
    assert gpu_check.run([], 0.5, lines.append) == "cut off after 0 s"
    monkeypatch.setattr(gpu_check, "PROCESS", ("-c", "import os; os.abort()"))
    assert gpu_check.run([], 30.0, lines.append) == "failed with exit code -6"


def test_a_task_that_fails_is_a_row_and_the_next_one_follows(monkeypatch, tmp_path):
    def tasks(dry, seconds):
        yield "first", lambda: 1 / 0
        yield "second", lambda: SPEED

    monkeypatch.setitem(gpu_sections.SECTIONS, "decode", tasks)
    monkeypatch.setattr(sys, "argv", ["process", "decode", str(tmp_path / "rows.json"), "dry", str(time.time() + 600)])
    gpu_sections.main()
    first, second = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert first["error"] == "ZeroDivisionError: division by zero"
    assert second["tokens_per_second"] == 2.0


def test_tests_that_failed_are_named_though_the_others_were_cut_off(tmp_path, monkeypatch):
    python, x = tmp_path / "python", "tests/gpu/test_x.py::test_"
    lines = f"[gw0] [ 33%] PASSED {x}a[cuda]\n{x}b SKIPPED [ 66%]\n[gw1] [ 99%] FAILED {x}c[cuda-1]\nE   FAILED\n"
    python.write_text(f'#!/bin/sh\nprintf "%s" "{lines}"\nkill -9 $$\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    row = gpu_sections._run_tests(tmp_path, False, time.time() + 600)
    assert (row["passed"], row["skipped"], row["failed"]) == (1, 1, ["test_x.py::test_c[cuda-1]"])
    assert row["error"] == "test_x.py::test_c[cuda-1]"
    python.write_text("#!/bin/sh\nexit 4\n")
    assert gpu_sections._run_tests(tmp_path, False, time.time() + 600)["error"] == "pytest ended with exit code 4"


@without_gpu
def test_without_a_gpu_the_benchmark_is_refused_in_one_line(tmp_path, capsys):
    assert main(["bench", "gpu"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert main(["bench", "gpu", "--dry-run", "--sections", "decod"]) == 2
    assert "did you mean 'decode'" in capsys.readouterr().err
    assert gpu_shakespeare.main([str(ROOT / "README.md"), str(tmp_path)]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert gpu_shakespeare.main([str(tmp_path / "none.txt"), str(tmp_path), "--dry-run"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_runs_on_characters_are_kept_one_by_one_and_fit_the_time(tmp_path, monkeypatch, capsys):
    clock, asked = [0.0], []
    monkeypatch.setattr(gpu_shakespeare, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(gpu_shakespeare, "machine", lambda device: {"gpu": "some", "torch": "2"})
    monkeypatch.setattr(gpu_shakespeare, "split", lambda text, folder: folder)

    def run(job, steps, data, folder, dry):
        asked.append((job.opt, steps))
        clock[0] += 20 + steps * 0.01
        curves = {"train": [[steps, 1.2]], "val": [[steps, 1.5]]}
        return {**vars(job), "steps": steps, "seconds": 20 + steps * 0.01, "best": 1.5, "last": 1.5, "curves": curves}

    monkeypatch.setattr(gpu_shakespeare, "run", run)
    found = gpu_shakespeare.measure(tmp_path, tmp_path, 280, False)
    assert asked == [("adamw", 150), ("adamw", 300), ("adamw", 5000), ("adana", 5000), ("adana", 5000)]
    assert len(found["dropped"]) == 5
    assert json.loads((tmp_path / "shakespeare.json").read_text()) == found
    assert "Published: 1.4697" in build_gpu.refresh(build_gpu.PAGE.read_text(encoding="utf-8"), tmp_path)
    clock[0] = 0.0
    found = gpu_shakespeare.measure(tmp_path, tmp_path, 120, False)
    assert [row["steps"] for row in found["runs"]] == [1525, 1525], "both alike, as many as fit"


@pytest.mark.slow
def test_a_dry_run_on_characters_trains_both(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 200)
    assert gpu_shakespeare.main([str(text), str(tmp_path), "--dry-run"]) == 0
    found = json.loads((tmp_path / "shakespeare_dry_run.json").read_text())
    assert [row["opt"] for row in found["runs"]] == ["adamw", "adana"]
    assert all(len(row["curves"]["val"]) == 3 for row in found["runs"])


def script(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPT, tree / "scripts")
    command = [tree / "scripts" / "gpu_check.sh", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, cwd=tmp_path)


def test_the_script_installs_wheels_where_a_package_is_missing_and_names_it_where_there_are_none(tmp_path):
    python = tmp_path / "python"
    lacks = "echo \"ModuleNotFoundError: No module named 'rich'\"; exit 1"
    python.write_text(
        f'#!/bin/bash\nif [ "$1" = -c ]; then [ -e installed ] && exit 0; {lacks}; fi\n'
        'echo "$@" >>ran\n[ "$2" != pip ] || touch installed\n'
    )
    python.chmod(0o755)
    tree = tmp_path / "tree"
    failed = script(tmp_path, PYTHON=str(python))
    assert failed.returncode == 2
    assert failed.stderr.startswith(
        "gpu-check: ModuleNotFoundError: No module named 'rich'; `scripts/gpu_check.sh wheels`"
    )
    (tree / "build" / "wheels").mkdir(parents=True)
    (tree / "build" / "wheels" / "some.whl").touch()
    done = script(tmp_path, "--seconds", "9", PYTHON=str(python), OUT="/elsewhere")
    assert done.returncode == 0, done.stderr
    installed, ran = (tree / "ran").read_text().splitlines()
    assert "--no-index --no-deps" in installed
    assert ran == "-m danalab bench gpu --output /elsewhere/check.json --seconds 9"
    (tree / "ran").unlink()
    assert script(tmp_path, "shakespeare", "text.txt", "--dry-run", PYTHON=str(python), OUT="/o").returncode == 0
    assert (tree / "ran").read_text() == f"-m danalab_bench.gpu_shakespeare {tmp_path}/text.txt /o --dry-run\n"
    assert script(tmp_path, "shakespeare", PYTHON=str(python)).returncode == 2


def test_the_page_is_that_of_the_stored_rows():
    page = build_gpu.PAGE.read_text(encoding="utf-8")
    assert build_gpu.refresh(page) == page, "run: python docs/build_gpu.py"
    assert "| adana | 28 | 0 |" in page

"""`danalab train` on two processes, as a person or torchrun starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from danalab.train.run.metrics import read_rows
from distributed.ranks import run_ranks
from e2e.disturbed import started_ranks

FLAGS = {
    "d-model": 32,
    "n-layers": 2,
    "n-heads": 2,
    "seq-len": 16,
    "global-batch": 8,
    "lr": 1e-3,
    "weight-decay": 0.1,
    "eval-interval": 0,
    "eval-batches": 1,
    "log-interval": 2,
    "ckpt-interval": 0,
}


def flags(data, run_dir, *more: str) -> list[str]:
    words = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    return ["train", "--data", str(data), "--run-dir", str(run_dir), *words, *more]


@pytest.mark.slow
def test_nproc_starts_ranks_and_a_signal_checkpoints_and_stops_them_all(data, tmp_path):
    run = flags(
        data, tmp_path / "run", "--iterations", "2000", "--warmup-steps", "2", "--nproc", "2", "--json"
    )
    command = [sys.executable, "-m", "danalab", *run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("step 2/"):
                process.send_signal(signal.SIGTERM)
        summary = json.loads(process.stdout.read())
    assert process.returncode == 85, seen
    assert summary["status"] == "interrupted"
    assert sum(line.startswith("step 2/") for line in seen) == 1  # one rank speaks
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == [
        f"step-{summary['step']:08d}"
    ]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")][:2] == [1, 2]


@pytest.mark.slow
def test_bad_input_with_nproc_is_one_line(data, tmp_path):
    run = flags(data, tmp_path / "run", "--iterations", "4", "--nproc", "3")
    result = subprocess.run([sys.executable, "-m", "danalab", *run], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "danalab: error: --global-batch 8 is not divisible by the 3 ranks\n"


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_by_name(data, tmp_path):
    run = flags(data, tmp_path / "run", "--iterations", "2000", "--warmup-steps", "2", "--nproc", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "danalab", *run], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 2/"):
                subprocess.run(["kill", "-KILL", started_ranks(process.pid)[1]], check=True)
            last = line
    assert process.returncode == 1
    assert last.startswith("danalab: error: rank 1 was killed by SIGKILL")


def test_ranks_that_torchrun_started_join_and_one_speaks(data, tmp_path, capfd):
    from danalab.cli.app import main

    arguments = flags(data, tmp_path / "run", "--iterations", "4", "--json", "--distributed-backend", "fsdp")

    def command_line(rank: int, size: int) -> int:
        return main(arguments)

    assert run_ranks(command_line, 2) == [0, 0]
    captured = capfd.readouterr()
    assert json.loads(captured.out)["step"] == 4  # one object, by one rank
    assert captured.err.count("step 4/4") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("backend", ["ddp", "zero", "fsdp"])
def test_one_rank_with_nccl_trains_as_a_process_on_the_cpu(data, tmp_path, backend, dtype):
    common = ["--iterations", "20", "--warmup-steps", "2"]
    for name, more in {
        "cpu": ["--device", "cpu"],
        "gpu": ["--device", "cuda", "--nproc", "1", "--distributed-backend", backend, "--dtype", dtype],
    }.items():
        run = flags(data, tmp_path / name, *common, *more)
        subprocess.run([sys.executable, "-m", "danalab", *run], check=True)
    cpu, gpu = (read_rows(tmp_path / name / "metrics.jsonl")[-1]["train/loss"] for name in ("cpu", "gpu"))
    assert gpu == pytest.approx(cpu, rel=0.02)

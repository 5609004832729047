"""The original's relative paths, in scripts/original: each prints danalab's command and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danalab.cli.app import main

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "scripts" / "original"
SMALL = "--n_embd 32 --n_layer 1 --n_head 1 --sequence_length 32 --batch_size 2 --acc_steps 1 --iterations 2"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    text = folder / "text.txt"
    text.write_text("\n".join(f"line {i} of some text" for i in range(2000)))
    words = ["--input", str(text), "--val-input", str(ROOT / "CHANGELOG.md"), "--tokenizer", "bytes"]
    assert main(["data", "prepare", "text", *words, "--out", str(folder / "small")]) == 0
    return folder


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(words, cwd=PLACE, env=environment, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_a_run_of_the_original_is_trained_evaluated_and_sampled(data):
    run_dir, set_of = str(data / "run"), str(data / "small")
    flags = ["--config_format", "base", "--model", "llama", "--opt", "adamw", "--lr", "1e-3", *SMALL.split()]
    done = run(sys.executable, "./src/main.py", *flags, "--dataset", set_of, "--run_dir", run_dir)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.startswith("now: danalab train --model llama --opt adamw")
    done = run(sys.executable, "inference.py", "--checkpoint", run_dir)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"now: danalab eval --run {run_dir}" in done.stderr
    words = ["--prompt", "line", "--top_k", "200", "--temperature", "0.8", "--max_tokens", "2", "--stream"]
    done = run(sys.executable, "inference.py", "--resume_from", run_dir, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("line")


@pytest.mark.slow
def test_it_is_a_rank_of_torchrun(data):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    flags = [
        "--model",
        "llama",
        "--opt",
        "adamw",
        "--lr",
        "1e-3",
        *SMALL.split(),
        "--distributed_backend",
        "gloo",
    ]
    place = ["--dataset", str(data / "small"), "--run_dir", str(data / "ranks")]
    done = run(*torchrun, "./src/main.py", *flags, *place)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("now: danalab train") == 1


@pytest.mark.parametrize(
    ("script", "words", "command"),
    [
        ("fineweb.py", [], "data prepare fineweb-10bt"),
        (
            "fineweb_100.py",
            ["--fineweb-dir", "nowhere", "--num-proc", "2", "--validation-examples", "3"],
            "data prepare fineweb-100bt --input nowhere",
        ),
    ],
)
def test_the_data_scripts_name_their_commands(script, words, command, tmp_path):
    done = run(
        sys.executable, f"src/data/{script}", *words, "--tokenizer", "nowhere", DATASETS_DIR=str(tmp_path)
    )
    assert f"now: danalab {command} --tokenizer nowhere\n" in done.stderr
    assert done.returncode == 2


@pytest.mark.slow
def test_a_decay_that_removes_more_than_a_weight_is_refused_with_its_reason(data):
    flags = [
        "--model",
        "enoki",
        "--opt",
        "adana",
        "--lr",
        "1e-3",
        *SMALL.split(),
        "--dataset",
        str(data / "small"),
    ]
    done = run(sys.executable, "./src/main.py", *flags, "--weight_decay", "100", "--wd_ts", "1.0")
    assert done.returncode == 2
    assert "weight" in done.stderr.splitlines()[-1]

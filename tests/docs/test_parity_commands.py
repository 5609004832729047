"""The commands of the original's quick start, as the parity page prints them, run in a shrunken form."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from danalab.cli.app import main

ROOT = Path(__file__).parents[2]
SMALLER = shlex.split(
    "--dataset small --seq_len 32 --batch_size 2 --acc_steps 1 --iterations 2 --eval_batches 1"
)
NEED_A_NETWORK = ("data download", "data fetch-gpt2", "make demo")


def commands() -> list[str]:
    """The right column of the quick start's table."""
    page = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    section = page.split("## The quick start")[1].split("\n## ")[0]
    cells = re.findall(r"^\|.*\| (`[^|]*`[^|]*) \|$", section, re.MULTILINE)
    return [re.findall(r"`([^`]*)`", cell)[0] for cell in cells]


def shrunken(command: str) -> list[str]:
    words = shlex.split(command)
    if command.startswith(("bash scripts/launch.sh", "sbatch", "torchrun")):
        heads = "1" if "qwen3" in command or "llama" in command else "2"
        ranks = ["--nproc", "2"] if "--nproc 4" in command else []
        words += ["--heads", heads, *ranks, *SMALLER]
    elif "data prepare" in command:
        words += ["--tokenizer", "bytes"]
        words += [] if "--input" in words else ["--input", "fineweb"]
    elif "generate" in command:
        words += ["--max-tokens", "2"]
    return words


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small data set, a corpus in FineWeb's layout, and stand-ins for danalab's program and SLURM."""
    folder = tmp_path_factory.mktemp("quickstart")
    text = folder / "text.txt"
    text.write_text("\n".join(f"line {i} of some text" for i in range(4000)))
    arguments = ["--input", str(text), "--val-input", str(ROOT / "CHANGELOG.md"), "--tokenizer", "bytes"]
    assert main(["data", "prepare", "text", *arguments, "--out", str(folder / "data" / "small")]) == 0
    programs = {
        "danalab": f'exec {shlex.quote(sys.executable)} -m danalab "$@"',
        "sbatch": 'exec bash "$@"',
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    }
    (folder / "bin").mkdir()
    for name, line in programs.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    return folder


def run(words: list[str], place: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DANALAB"))}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT)} if words[0] == "sbatch" else {}
    environment = {
        **kept,
        **slurm,
        "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{kept['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "DANALAB": str(place / "bin" / "danalab"),
        "DATASETS_DIR": str(place / "data"),
        "RESULTS_BASE_FOLDER": str(place / "runs"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def test_the_page_prints_the_quick_start():
    assert len(commands()) >= 15
    assert sum(command.startswith("bash scripts/launch.sh") for command in commands()) >= 5


def test_the_sweep_lists_its_jobs(place):
    (command,) = [command for command in commands() if "sweep.sh" in command]
    assert "restart_enoki.sh" in run(shlex.split(command), place) or "launch.sh" in run(
        shlex.split(command), place
    )


TRAINS = [c for c in commands() if c.startswith(("bash scripts/launch.sh", "sbatch", "torchrun"))]


@pytest.mark.slow
@pytest.mark.parametrize("command", TRAINS)
def test_a_command_that_trains(command, place):
    run(shrunken(command), place)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands() if "data prepare" in c])
def test_a_command_that_prepares_data(command, place):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    sample = place / "fineweb" / "sample" / ("100BT" if "100bt" in command else "10BT")
    sample.mkdir(parents=True, exist_ok=True)
    documents = [f"document {i} of the web" for i in range(50)]
    parquet.write_table(arrow.table({"text": documents}), sample / "000.parquet")
    run(shrunken(command), place)


@pytest.mark.slow
def test_a_run_is_sampled_and_evaluated(place):
    run([*shrunken(TRAINS[0]), "--run_dir", "EXP"], place)
    for command in commands():
        if "EXP" in command:
            assert run(shrunken(command), place)


def test_every_command_is_run_or_needs_a_network():
    run_here = {*TRAINS, *(c for c in commands() if "data prepare" in c or "EXP" in c or "sweep.sh" in c)}
    assert all(any(words in c for words in NEED_A_NETWORK) for c in commands() if c not in run_here)

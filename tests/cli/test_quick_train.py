"""The script from arrays to a trained resonance model: what it calls, in what order, and where it stops."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "quick_train.sh"
STUB = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$1 $2" in
    "data validate") exit "${VALIDATE:-0}" ;;
    "plan --arch")
        fits=${FITS:-9} # without recomputation; 16 times as many with it
        [[ "$*" != *"checkpointing full"* ]] || fits=$((16 * fits + ${FULL:-0}))
        ((fits)) || { echo "danalab: error: too large" >&2; exit 2; }
        printf '{"fit": {"micro_batch": %d, "x": 1}}' "$fits"
        ;;
    "data split") mkdir -p "$5"; printf '{"source": "%s"}' "$(cd "$3" && pwd -P)" > "$5/split.json" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    stub = tmp_path / "danalab"
    stub.write_text(STUB)
    stub.chmod(0o755)
    (tmp_path / "data").mkdir()

    def call(*arguments: object, **environment: str) -> tuple[int, list[str], str]:
        (tmp_path / "calls").write_text("")
        done = subprocess.run(
            ["bash", str(SCRIPT), *map(str, arguments)],
            env={**os.environ, "DANALAB": str(stub), "CALLS": str(tmp_path / "calls"), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, (tmp_path / "calls").read_text().splitlines(), done.stderr

    return call


FULL = "--activation-checkpointing full"


@pytest.mark.parametrize(
    ("size", "memory"),
    [
        ("small", "--batch-size 4 --acc-steps 8"),
        ("large-32k", "--batch-size 2 --acc-steps 16"),
        ("xlarge", "--batch-size 1 --acc-steps 32"),
    ],
)
def test_it_validates_splits_and_trains(run, tmp_path, size, memory):
    code, calls, _ = run(tmp_path / "data", size, "--iterations", "5")
    assert code == 0
    assert calls == [
        f"data validate {tmp_path}/data",
        f"data split {tmp_path}/data --output-path {tmp_path}/data-split --val-ratio 0.01",
        f"train --arch resonance --size {size} --data {tmp_path}/data-split --vocab-size 50304 {memory} --iterations 5",
    ]


def test_a_division_that_is_given_is_taken(run, tmp_path):
    for words in (["--batch_size", "1"], ["--global-batch=8"]):
        _, calls, _ = run(tmp_path / "data", "large", *words)
        assert calls[-1].endswith("--vocab-size 50304 " + " ".join(words))


def test_a_dry_run_prints_the_configuration_in_place_of_training(run, tmp_path):
    code, calls, _ = run(tmp_path / "data", "small", "--dry-run", "--lr", "1e-3")
    assert code == 0
    assert calls[-1].endswith("--batch-size 4 --acc-steps 8 --lr 1e-3 --print-config")


def test_a_second_call_takes_the_split_that_is_there(run, tmp_path):
    run(tmp_path / "data", "small")
    code, calls, _ = run(tmp_path / "data", "small")
    assert code == 0
    assert not any(call.startswith("data split") for call in calls)


def test_the_split_of_other_data_is_not_taken(run, tmp_path):
    run(tmp_path / "data", "small")
    (tmp_path / "other").mkdir()
    code, _, errors = run(tmp_path / "other", "small", OUTPUT_PATH=str(tmp_path / "data-split"))
    assert code == 2
    assert "is the split of other data" in errors


def test_invalid_data_stop_it(run, tmp_path):
    code, calls, _ = run(tmp_path / "data", "small", VALIDATE="1")
    assert code == 1
    assert len(calls) == 1


@pytest.mark.slow
def test_with_the_real_command_it_prints_what_it_would_train(run, tmp_path):
    (tmp_path / "real").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m danalab "$@"\n')
    (tmp_path / "real").chmod(0o755)
    for number in range(2):
        ids = np.random.default_rng(number).integers(0, 500, (20, 65), np.uint16)
        np.save(tmp_path / "data" / f"{number}.npy", ids)
    code, _, errors = run(tmp_path / "data", "small", "--dry-run", DANALAB=str(tmp_path / "real"))
    assert code == 0, errors
    assert (tmp_path / "data-split" / "train").is_dir()


@pytest.mark.parametrize("arguments", [(), ("data",), ("data", "tiny"), ("nothing", "small")])
def test_wrong_arguments_are_refused(run, tmp_path, arguments):
    code, calls, errors = run(*(tmp_path / a if a in ("data", "nothing") else a for a in arguments))
    assert (code, calls) == (2, [])
    assert errors.startswith("quick_train.sh: error:")

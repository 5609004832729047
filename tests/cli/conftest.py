"""A run of two steps on text, for the verbs that read one."""

from __future__ import annotations

from pathlib import Path

import pytest

from danalab.cli.app import main
from text_data import prepare_lines


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; its data lie beside it."""
    place = tmp_path_factory.mktemp("cli")
    data = prepare_lines(place, 400, 12, end=".")
    sizes = (
        "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 16 --batch-size 2 --iterations 2 --eval-batches 1"
    )
    words = ["train", *sizes.split(), "--data", str(data), "--run-dir", str(place / "run")]
    assert main(words) == 0
    return place / "run"

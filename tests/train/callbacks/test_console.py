"""What is printed of a run's pace."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from danalab.train.callbacks.console import ConsoleProgress


@pytest.mark.parametrize(("sample_tokens", "words"), [(512, "  2 samples/s"), (None, "1,024 tok/s  MFU")])
def test_sequences_are_counted_where_the_data_come_in_sequences(capsys, sample_tokens, words):
    progress = ConsoleProgress(10, 0, Console(file=io.StringIO()), sample_tokens)
    row = {"step": 2, "train/loss": 3.0, "lr": 1e-3, "tokens_per_second": 1024.0, "mfu": 0.5, "seconds_per_step": 1.0}
    progress.on_row(row)
    assert words in capsys.readouterr().err

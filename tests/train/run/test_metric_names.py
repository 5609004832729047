"""The table of metrics names every key that a run writes."""

from __future__ import annotations

import re

from danalab.train import train
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import METRICS, read_rows


def is_known(key: str) -> bool:
    """Whether a key of a row is described."""
    return any(re.fullmatch(re.escape(name).replace("<name>", ".+"), key) for name in METRICS)


def test_every_key_of_a_row_is_in_the_table(tiny):
    rows = read_rows(RunFolder(train(tiny(opt="adana", n_experts=4, top_k=2, iterations=4))).metrics_file)
    keys = {key for row in rows for key in row}
    assert {"optim/alpha", "moe/max_load", "val/bpb"} <= keys
    assert {key for key in keys if not is_known(key)} == set()


def test_a_key_of_no_writer_is_unknown():
    assert not is_known("optim/")
    assert not is_known("loss")

"""Runs on arrays, mixtures and packed documents, with ramps: what is logged, and that resuming changes nothing."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from danalab.data import prepare
from danalab.data.array_split import split_arrays
from danalab.errors import UserError
from danalab.train import TrainConfig, train
from danalab.train.evaluation import evaluate_run
from danalab.train.run.open import open_run

SMALL = {
    "d_model": 32, "n_layers": 1, "n_heads": 2, "opt": "adana", "iterations": 8, "global_batch": 8, "batch_size": 4,
    "log_interval": 1, "eval_interval": 4, "ckpt_interval": 0, "vocab_size": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def stream(tmp_path_factory) -> Path:
    """Bytes of short documents."""
    folder = tmp_path_factory.mktemp("stream")
    draw = random.Random(0)
    for split, n in (("train", 400), ("val", 40)):
        lines = [
            json.dumps({"text": "".join(draw.choices("abcdefgh ", k=draw.randint(3, 60)))}) for _ in range(n)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    inputs, val_inputs = [folder / "train.jsonl"], [folder / "val.jsonl"]
    return prepare("text", "bytes", folder / "set", inputs=inputs, val_inputs=val_inputs, progress=False)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    draw = np.random.default_rng(0)
    for number in range(3):
        np.save(folder / f"{number}.npy", draw.integers(0, 64, (30, 33)).astype(np.uint16))
    split_arrays(folder, folder.with_name("divided"), val_ratio=0.2, by="sequence")
    return folder.with_name("divided")


def _rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_arrays_train_at_the_length_of_their_sequences(arrays, tmp_path):
    run = train(TrainConfig(**SMALL, data=str(arrays), run_dir=tmp_path / "run"))
    rows = _rows(run)
    assert [row["tokens"] for row in rows] == [256 * step for step in range(1, 9)]
    assert open_run(run).config["config"]["seq_len"] == 32
    assert rows[-1]["val/loss"] > 0
    assert evaluate_run(run).tokens == 18 * 32


@pytest.mark.parametrize("mixture", [False, True])
def test_a_run_that_moved_with_its_data_is_evaluated(arrays, tmp_path, monkeypatch, mixture):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("one", "two"):
        shutil.copytree(arrays, name)
    data = "one:0.5,two:0.5" if mixture else "one"
    loss = evaluate_run(train(TrainConfig(**SMALL, data=data, run_dir=Path("run")))).loss
    monkeypatch.chdir((tmp_path / "here").rename(tmp_path / "there"))
    assert evaluate_run("run").loss == loss
    (tmp_path / "there" / "one").rename("other")
    with pytest.raises(UserError, match="give --data"):
        evaluate_run("run")
    shutil.copytree(arrays, "one")
    for file in Path("one", "train").glob("*.npy"):
        np.save(file, np.load(file)[::-1])
    with pytest.raises(UserError, match="no longer at"):
        evaluate_run("run")


def test_packed_and_masked_documents_train_and_resume(stream, tmp_path):
    settings = {
        **SMALL,
        "vocab_size": None,
        "data": str(stream),
        "seq_len": 64,
        "document_mask": True,
    }
    whole = train(TrainConfig(**settings, run_dir=tmp_path / "whole"))
    for _ in range(2):
        parts = train(TrainConfig(**settings, run_dir=tmp_path / "parts", iterations_to_run=5))
    losses = [row["train/loss"] for row in _rows(whole)]
    assert losses == [row["train/loss"] for row in _rows(parts)]
    plain = train(TrainConfig(**{**settings, "document_mask": False}, run_dir=tmp_path / "plain"))
    assert losses[1:] != [row["train/loss"] for row in _rows(plain)][1:]
    masked = json.loads((whole / "summary.json").read_text())["val/loss"]
    assert evaluate_run(whole).loss == pytest.approx(masked, rel=1e-6)


def test_a_mixture_trains_and_is_found_again_by_eval(stream, tmp_path):
    other = stream.with_name("other")
    shutil.copytree(stream, other)
    settings = {
        **SMALL,
        "vocab_size": None,
        "data": f"{stream}:0.75,{other}:0.25",
        "seq_len": 32,
        "final_eval_batches": 0,
    }
    run = train(TrainConfig(**settings, run_dir=tmp_path / "run"))
    assert evaluate_run(run).tokens == json.loads((run / "summary.json").read_text())["val/tokens"]

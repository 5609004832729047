"""One damaged file of a run folder is noticed and reported, and does not cost a run whose checkpoints are sound."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import torch

from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run


def weights(folder):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])


@pytest.fixture
def half(tiny, tmp_path):
    """(folder of a run that has made 10 of 20 steps, its weights in the end when nothing is damaged)."""
    whole = train(tiny(run_dir=tmp_path / "whole"))
    return train(tiny(iterations_to_run=10)), weights(whole)


def delete(file):
    file.unlink()


def zero(file):
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[: middle - 200] + bytes(400) + content[middle + 200 :])


def cut(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-2]))


def hollow(file):
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2] + lines[4:]))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "damage", [delete, *(pytest.param(f, marks=pytest.mark.slow) for f in (cut, hollow, zero))]
)
def test_a_hole_in_the_metrics_does_not_stop_a_run(tiny, half, damage):
    folder, expected = half
    damage(folder / "metrics.jsonl")
    train(tiny(iterations_to_run=5))
    train(tiny())
    assert torch.equal(weights(folder), expected)
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")][-5:] == [12, 14, 16, 18, 20]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "content",
    [
        "{",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("[3]", "null", "\0")),
    ],
)
def test_a_damaged_summary_does_not_stop_a_run(tiny, half, caplog, content):
    folder, expected = half
    (folder / "summary.json").write_text(content)
    train(tiny())
    assert "summary.json: " in caplog.text
    assert torch.equal(weights(folder), expected)


@pytest.mark.parametrize(
    ("data_of_run", "split"),
    [("{0}/two", "train"), ("{0}/two", "val"), ("{0}/one:0.5,{0}/two:0.5", "val")],
)
def test_a_file_that_changed_between_two_jobs_is_named(tiny, data, tmp_path, data_of_run, split):
    for name in ("one", "two"):
        shutil.copytree(data, tmp_path / name)
    spec = tiny(data=data_of_run.format(tmp_path))
    train(tiny(data=spec.data, iterations_to_run=2))
    file = tmp_path / "two" / f"{split}-00000.bin"
    content, times = bytearray(file.read_bytes()), file.stat()
    content[-2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match=rf"changed since in {split}-00000\.bin\); restore its data"):
        train(spec)


def test_a_validation_file_of_another_program_that_changed_is_noticed(tiny, tmp_path):
    for split, length in (("train", 20_000), ("val", 4_000)):
        np.arange(length, dtype="<u2").tofile(tmp_path / f"{split}.bin")
    train(tiny(data=str(tmp_path), iterations_to_run=2))
    np.arange(1, 4_001, dtype="<u2").tofile(tmp_path / "val.bin")
    with pytest.raises(UserError, match=r"changed since in the validation split, val\.bin\); restore"):
        train(tiny(data=str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_written_again(tiny, half, name):
    folder, _ = half
    file = folder / "tokenizer" / name
    sound = file.read_bytes()
    file.write_bytes(sound[: len(sound) // 2])
    train(tiny())
    assert file.read_bytes() == sound

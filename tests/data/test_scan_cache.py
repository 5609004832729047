"""A damaged entry of the cache of scans is made again: data open as without it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data import open_dataset


def _raw(folder: Path) -> Path:
    folder.mkdir()
    ids = np.random.default_rng(0).integers(0, 50_000, 4000).astype("<u2")
    ids[::37] = 50_256
    ids.tofile(folder / "train.bin")
    return folder


def _arrays(folder: Path) -> Path:
    folder.mkdir()
    np.save(folder / "a.npy", np.random.default_rng(0).integers(0, 500, (40, 33)))
    return folder


def _first_batch(folder: Path, packing: str) -> tuple[torch.Tensor, torch.Tensor]:
    return open_dataset(folder).batches(seed=0, global_batch=2, seq_len=16, packing=packing)[3]


def _zeros_of_another_length(file: Path) -> None:
    np.save(file.with_suffix(".npy"), np.zeros(5, np.int64))
    if file.suffix != ".npy":
        file.write_text('{"max_id": 3, "sha256": "0"}')


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-90] ^= 4
    file.write_bytes(content)


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-70]),
    "flipped": _flip,
    "another": _zeros_of_another_length,
    "deep": lambda file: file.write_bytes(b"[" * 100_000),
    "pipe": _pipe,
    "link to nowhere": lambda file: (file.unlink(), file.symlink_to("gone")),
    "folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(
    ("make", "packing"), [(_raw, "windows"), (_raw, "documents"), (_arrays, "windows")], ids=["raw", "ends", "arrays"]
)
def test_data_open_as_before_when_a_scan_is_damaged(tmp_path, monkeypatch, make, packing, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = make(tmp_path / "set")
    before = _first_batch(folder, packing)
    entries = sorted((tmp_path / "cache").rglob("*.*"))
    assert len(entries) == 1 + (packing == "documents")
    for entry in entries:
        damage(entry)
    after = _first_batch(folder, packing)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

"""Random corruptions of valid data sets: each is refused or found, none ends in a traceback or takes long."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data import open_dataset, prepare
from danalab.data.array_split import split_arrays
from danalab.data.open import describe
from danalab.data.tokenizers import load_tokenizer
from danalab.data.validation import validate
from danalab.errors import UserError

Draw = random.Random


def _flip(file: Path, draw: Draw) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _overwrite(file: Path, draw: Draw) -> None:
    content = bytearray(file.read_bytes())
    begin, length = draw.randrange(len(content)), draw.choice([1, 2, 16, 64, 512])
    noise = draw.choice([bytes(length), b"\xff" * length, draw.randbytes(length)])
    content[begin : begin + length] = noise[: len(content) - begin]
    file.write_bytes(content)


def _truncate(file: Path, draw: Draw) -> None:
    file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size)])


def _extend(file: Path, draw: Draw) -> None:
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.choice([1, 2, 7, 64])))


def _repeat(file: Path, draw: Draw) -> None:
    content = file.read_bytes()
    place, length = draw.randrange(len(content)), draw.choice([1, 2, 64, 200])
    file.write_bytes(content[:place] + content[place : place + length] + content[place:])


def _cut_out(file: Path, draw: Draw) -> None:
    content = file.read_bytes()
    place = draw.randrange(len(content))
    file.write_bytes(content[:place] + content[place + draw.choice([1, 2, 64, 200]) :])


def _noise(file: Path, draw: Draw) -> None:
    file.write_bytes(draw.randbytes(file.stat().st_size))


def _empty(file: Path, _: Draw) -> None:
    file.write_bytes(b"")


def _remove(file: Path, _: Draw) -> None:
    file.unlink()


def _dangle(file: Path, _: Draw) -> None:
    file.unlink()
    file.symlink_to(file.with_name("gone"))


def _folder(file: Path, _: Draw) -> None:
    file.unlink()
    file.mkdir()


def _another_digit(file: Path, draw: Draw) -> None:
    text = file.read_bytes()
    places = [i for i, byte in enumerate(text) if chr(byte) in "0123456789"]
    place = draw.choice(places or [0])
    file.write_bytes(text[:place] + draw.choice(b"0123456789").to_bytes(1, "little") + text[place + 1 :])


def _copy_over(file: Path, draw: Draw) -> None:
    others = [other for other in sorted(file.parent.iterdir()) if other != file and other.is_file()]
    if others:
        shutil.copyfile(draw.choice(others), file)


def _rename(file: Path, draw: Draw) -> None:
    suffix = "".join(file.suffixes)
    name = draw.choice(
        ["train_1732300000", "train_07", "val", "train", "manifest", "tokenizer", "\udcff", "e" * 240]
    )
    file.rename(file.with_name(name + draw.choice([suffix, suffix, ".bin", ".json", ".npy", ".pt"])))


def _pipe(file: Path, _: Draw) -> None:
    file.unlink()
    os.mkfifo(file)


def _expand(file: Path, draw: Draw) -> None:
    file.unlink()
    torch.save(
        torch.zeros(1, 1, dtype=torch.int64).expand(10 ** draw.randint(1, 9), 1000), file.with_suffix(".pt")
    )


CORRUPTIONS: list[Callable[[Path, Draw], None]] = [
    _flip,
    _flip,
    _overwrite,
    _truncate,
    _extend,
    _repeat,
    _cut_out,
    _noise,
    _empty,
    _remove,
    _dangle,
    _folder,
    _another_digit,
    _copy_over,
]
MORE = [*CORRUPTIONS, _rename, _pipe, _expand]


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("valid")
    draw = random.Random(1)
    (root / "text").mkdir()
    for number in range(12):
        (root / "text" / f"{number}.txt").write_text(
            f"{number} " + "".join(draw.choices("abcdefg \n", k=200))
        )
    settings = {"inputs": [root / "text"], "val_fraction": 0.3, "progress": False}
    shards = prepare("text", "bytes", root / "shards", shard_tokens=1, **settings)
    bare = root / "bare"
    bare.mkdir()
    load_tokenizer("bytes").save(bare)
    for name in ("train_00", "train_01", "val"):
        np.array(draw.choices(range(257), k=300), "<u2").tofile(bare / f"{name}.bin")
    arrays = root / "arrays"
    arrays.mkdir()
    for number, suffix in enumerate((".npy", ".npy", ".pt")):
        ids = np.array(draw.choices(range(257), k=80)).reshape(8, 10)
        if suffix == ".pt":
            torch.save(torch.from_numpy(ids), arrays / f"{number}.pt")
        else:
            np.save(arrays / f"{number}{suffix}", ids)
    split = root / "split"
    split_arrays(arrays, split, by="sequence", val_ratio=0.3)
    return {"shards": shards, "bare": bare, "arrays": arrays, "split": split}


@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", ["shards", "bare", "arrays", "split"])
def test_damages_of_every_layout_end_in_one_line_or_success(valid, layout, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    original = valid[layout]
    files = sorted(path.relative_to(original) for path in original.rglob("*") if not path.is_dir())
    for number in range(100):
        draw = random.Random(f"damage {layout} {number}")
        folder = tmp_path / str(number)
        shutil.copytree(original, folder)
        damages = [(draw.choice(files), draw.choice(MORE)) for _ in range(draw.randint(1, 3))]
        for name, damage in damages:
            if (folder / name).is_file() and (folder / name).stat().st_size:
                damage(folder / name, draw)
        for read in (validate, describe, _first_batches):
            told = ""
            try:
                read(folder)
            except UserError as error:
                told = str(error)
            except Exception as error:
                raise AssertionError(f"{layout} {number}: {read.__name__} after {damages}") from error
            assert "\n" not in told, damages


def _first_batches(folder: Path) -> None:
    for split in ("train", "val"):
        batches = open_dataset(folder, split).batches(seed=0, global_batch=2, seq_len=4)
        assert batches[0][0].shape == (2, 4)

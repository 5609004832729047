"""500 random corruptions of good arrays: each is found, and none ends in a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from danalab.data.validation import validate

VOCAB = 300
Corruption = Callable[[random.Random, Path], None]


def _truncate(draw: random.Random, path: Path) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def _append(draw: random.Random, path: Path) -> None:
    with open(path, "ab") as file:
        file.write(draw.randbytes(draw.randint(1, 5000)))


def _garbage(draw: random.Random, path: Path) -> None:
    path.write_bytes(draw.randbytes(draw.randint(0, 4000)))


def _scramble_head(draw: random.Random, path: Path) -> None:
    """Overwrite a stretch of the header with bytes that occur in no header."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(40)
    content[start : start + draw.randint(8, 20)] = bytes(draw.choices(range(128, 256), k=20))
    path.write_bytes(content)


def _overwrite_ids(draw: random.Random, path: Path) -> None:
    """A stretch of ones, as a failing disk leaves it: ids of 65,535 or -1."""
    content = bytearray(path.read_bytes())
    begin = content.find(b"\n") + 1 if path.suffix == ".npy" else len(content) // 3
    start = draw.randrange(begin, len(content) - 40)
    content[start : start + 32] = b"\xff" * 32
    path.write_bytes(content)


def _with(change: Callable[[random.Random, np.ndarray], np.ndarray]) -> Corruption:
    def corrupt(draw: random.Random, path: Path) -> None:
        array = _read(path).astype(np.int64)
        array = change(draw, array)
        if path.suffix == ".npy":
            np.save(path, array)
        else:
            torch.save(torch.from_numpy(np.ascontiguousarray(array)), path)

    return corrupt


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True).numpy()
    return np.load(path)


def _set(draw: random.Random, array: np.ndarray, value: float) -> np.ndarray:
    array[draw.randrange(len(array)), draw.randrange(array.shape[1])] = value
    return array


def _repeat(draw: random.Random, array: np.ndarray) -> np.ndarray:
    source, target = draw.sample(range(len(array)), 2)
    array[target] = array[source]
    return array


def _link_to_nowhere(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(f"gone-{draw.random()}")


def _copy_of_a_neighbour(draw: random.Random, path: Path) -> None:
    other = draw.choice([p for p in path.parent.iterdir() if p.suffix == path.suffix and p != path])
    path.unlink()
    draw.choice([shutil.copy, os.link, lambda a, b: os.symlink(os.path.abspath(a), b)])(other, path)


class _Trap:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def _code(draw: random.Random, path: Path) -> None:
    path.unlink()
    torch.save(draw.choice([_Trap(), [_Trap()], {"ids": _Trap()}]), path.with_suffix(".pt"))


CORRUPTIONS: dict[str, Corruption] = {
    "truncated": _truncate,
    "bytes appended": _append,
    "garbage": _garbage,
    "scrambled head": _scramble_head,
    "overwritten ids": _overwrite_ids,
    "large id": _with(lambda d, a: _set(d, a, d.randint(VOCAB, 2**31))),
    "negative id": _with(lambda d, a: _set(d, a, -d.randint(1, 2**31))),
    "floats": _with(lambda d, a: a.astype(d.choice([np.float16, np.float32, np.float64]))),
    "not a number": _with(lambda d, a: _set(d, a.astype(np.float32), np.nan)),
    "column lost": _with(lambda d, a: a[:, :-1]),
    "flat": _with(lambda d, a: a.ravel()),
    "three dimensions": _with(lambda d, a: a[None]),
    "no sequences": _with(lambda d, a: a[:0]),
    "repeated sequence": _with(_repeat),
    "link to nowhere": _link_to_nowhere,
    "copy of a neighbour": _copy_of_a_neighbour,
    "code": _code,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    draw = np.random.default_rng(0)
    for number in range(6):
        array = draw.integers(0, VOCAB, (8, 16))
        if number < 2:
            np.save(folder / f"{number}.npy", array.astype(np.uint16))
        elif number < 4:
            np.save(folder / f"{number}.npy", array.astype(np.int32))
        else:
            torch.save(torch.from_numpy(array), folder / f"{number}.pt")
    assert validate(folder, vocab_size=VOCAB).valid
    return folder


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_corruption_is_found(good, tmp_path, kind):
    per_kind = -(-500 // len(CORRUPTIONS))
    for number in range(per_kind):
        draw = random.Random(f"{kind}{number}")
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        target = draw.choice(sorted(folder.iterdir()))
        if kind in (
            "scrambled head",
            "bytes appended",
            "overwritten ids",
        ):  # archives have slack where nothing is read
            target = draw.choice(sorted(folder.glob("*.npy")))
        CORRUPTIONS[kind](draw, target)
        result = validate(folder, vocab_size=VOCAB)
        assert result.errors, f"{kind} of {target.name} (case {number}) passed in silence"
        assert all(error.file.startswith((target.stem, "1", "2", "3", "5")) for error in result.errors), (
            result.errors
        )


def test_a_flipped_bit_in_an_archive_changes_nothing_or_is_found(tmp_path):
    for case in range(100):
        draw, array = random.Random(case), np.random.default_rng(case).integers(0, VOCAB, (8, 16))
        path = tmp_path / f"{case}.pt"
        torch.save(torch.from_numpy(array), path)
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        assert validate(path, vocab_size=VOCAB).errors or np.array_equal(_read(path), array)

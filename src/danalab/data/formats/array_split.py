"""`danalab data split`: train/ and val/ of symbolic links to a folder of arrays. Nothing is copied.

    by file       the files with the smallest keyed hashes validate, in the number that the ratio gives
    by sequence   `NAME.rows` beside each link lists the sequences of the file that belong to the split

Several names of one file are one item. The choice depends on the seed and on relative paths (by file), or on the seed
and each sequence's position (by sequence).
"""

import hashlib
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from danalab.data.formats.array_dataset import SPLIT_RECORD, SPLITS, has_splits
from danalab.data.formats.array_files import BadArrayError, find_files, open_array
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError
from danalab.files import fsync_path, naming, write_json


@dataclass(frozen=True)
class ArraySplit:
    """The folders made by a split."""

    train_dir: str
    val_dir: str
    train_files: int
    val_files: int
    by: str
    seed: int
    val_ratio: float
    train_sequences: int | None = None
    """None if whole files are split."""
    val_sequences: int | None = None


def split_arrays(
    source: str | Path, out: str | Path, *, val_ratio: float = 0.01, seed: int = 42, by: str = "file"
) -> ArraySplit:
    """Make `out`/train and `out`/val of links into `source`, with the same subfolders.

    Args:
        source: folder of arrays.
        out: absent or empty, and outside of `source`.
        val_ratio: share of the items that validate, at least one.
        by: "file" or "sequence".
    Raises:
        UserError: fewer than two files (sequences), dangling links, or an output that exists or lies in the source.
    """
    source, out = Path(source), Path(out)
    if not 0 < val_ratio < 1:
        raise UserError(f"--val-ratio {val_ratio}: must lie between 0 and 1")
    if by not in ("file", "sequence"):
        raise UserError(f"--by {by}: known are file, sequence")
    if seed < 0:
        raise UserError(f"--seed {seed}: must be 0 or more")
    _check_places(source, out)
    files = find_files(source)
    dangling = [path for path in files if not path.exists()]
    if dangling:
        others = f" and {len(dangling) - 1} more" if len(dangling) > 1 else ""
        target = os.readlink(dangling[0])
        raise UserError(f"{dangling[0]}: a dangling symbolic link (to {target}){others}; remove it first")
    if not files:
        raise UserError(f"{source}: no arrays (.npy, .npz, .pt) below it")
    shapes = [_shape(path) for path in files]
    for path, shape in zip(files, shapes, strict=True):
        if shape[1] != shapes[0][1]:
            raise UserError(
                f"{path}: sequences of {shape[1]} tokens, but {shapes[0][1]} in {files[0]}; all must have the same "
                "length, or the split could not be opened"
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        out.rmdir()  # it is empty
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        if by == "file":
            division = _by_file(source, files, work, out, val_ratio, seed)
        else:
            counts = {path: shape[0] for path, shape in zip(files, shapes, strict=True)}
            division = _by_sequence(source, counts, work, out, val_ratio, seed)
        if (source / "tokenizer.json").exists():
            (work / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
        write_json(work / SPLIT_RECORD, {"source": str(source.resolve()), **asdict(division)})
        work.chmod(0o755)
        work.rename(out)  # atomic
        fsync_path(out.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return division


def _check_places(source: Path, out: Path) -> None:
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    if has_splits(source):
        raise UserError(f"{source}: has train/ and val/ already; use it as it is")
    real_source, real_out = source.resolve(), out.resolve()
    if real_out == real_source or real_source in real_out.parents:
        raise UserError(f"--output-path {out}: lies in the data folder {source}; choose one outside of it")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"--output-path {out}: exists and is not a folder")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"--output-path {out}: is not empty; nothing is overwritten: remove it or choose another")


def _by_file(source: Path, files: list[Path], work: Path, out: Path, val_ratio: float, seed: int) -> ArraySplit:
    groups: dict[tuple[int, int], list[Path]] = {}
    for path in files:
        status = path.stat()
        groups.setdefault((status.st_dev, status.st_ino), []).append(path)
    if len(groups) < 2:
        raise UserError(f"{source}: a single file cannot be split by file; give --by sequence")
    ordered = sorted(groups.values(), key=lambda group: _hash(seed, group[0].relative_to(source).as_posix()))
    wanted = max(1, round(val_ratio * len(files)))
    val: list[Path] = []
    for group in ordered[:-1]:  # one item stays for training
        if len(val) >= wanted:
            break
        val += group
    chosen = set(val)
    by_split = {"train": [path for path in files if path not in chosen], "val": sorted(val)}
    for split, paths in by_split.items():
        for path in paths:
            _link(path, work / split / path.relative_to(source))
    return ArraySplit(str(out / "train"), str(out / "val"), len(by_split["train"]), len(val), "file", seed, val_ratio)


def _by_sequence(
    source: Path, n_sequences: dict[Path, int], work: Path, out: Path, val_ratio: float, seed: int
) -> ArraySplit:
    unique: dict[tuple[int, int], Path] = {}
    for path in n_sequences:
        status = path.stat()
        unique.setdefault((status.st_dev, status.st_ino), path)
    paths = list(unique.values())  # several names of a file must not repeat its sequences
    counts = [n_sequences[path] for path in paths]
    total = sum(counts)
    if total < 2:
        raise UserError(f"{source}: {total} sequence(s) cannot be split")
    n_val = min(max(1, round(val_ratio * total)), total - 1)
    validates = np.zeros(total, bool)
    validates[Permutation(total, f"danalab division 1|{seed}".encode())(np.arange(n_val))] = True
    n_files: dict[str, int] = dict.fromkeys(SPLITS, 0)
    start = 0
    for path, count in zip(paths, counts, strict=True):
        mine = validates[start : start + count]
        start += count
        for split, rows in (("train", np.flatnonzero(~mine)), ("val", np.flatnonzero(mine))):
            if not len(rows):
                continue
            place = work / split / path.relative_to(source)
            _link(path, place)
            listed = place.with_name(place.name + ".rows")
            with naming(listed), open(listed, "wb") as file:
                np.save(file, rows.astype(np.int64), allow_pickle=False)
            n_files[split] += 1
    return ArraySplit(
        str(out / "train"), str(out / "val"), n_files["train"], n_files["val"], "sequence", seed, val_ratio,
        total - n_val, n_val,
    )  # fmt: skip


def _shape(path: Path) -> tuple[int, int]:
    try:
        rows, length = open_array(path).shape
        return rows, length
    except BadArrayError as error:
        raise UserError(f"{error}; run danalab data validate first") from error


def _link(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path.resolve())


def _hash(seed: int, name: str) -> bytes:
    text = f"danalab division 1|{seed}|{name}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()

"""`danalab data split`: train/ and val/ of symbolic links to a folder of arrays. Nothing is copied.

    by file       the files with the smallest keyed hashes validate, in the number that the ratio gives
    by sequence   `NAME.rows` beside each link lists the sequences of the file that belong to the split

Several names of one file are one item. The choice depends on the seed and on relative paths (by file), or on the seed
and each sequence's position (by sequence).
"""

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from danalab.data.array_files import SPLIT_RECORD, SPLITS, find_files, has_splits, open_array
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

    A share `val_ratio` of the files or sequences (`by`) validates. UserError: fewer than two of them, a dangling link,
    or an `out` that is not empty or lies in `source`.
    """
    source, out = Path(source), Path(out)
    if not 0 < val_ratio < 1:
        raise UserError(f"--val-ratio is {val_ratio}; it must lie between 0 and 1")
    if by not in ("file", "sequence"):
        raise UserError(f"--by {by}: known are file, sequence")
    if seed < 0:
        raise UserError(f"--seed is {seed}; it must be 0 or more")
    _check_places(source, out)
    counts = _sequences(source)
    parts = list((_by_file if by == "file" else _by_sequence)(source, counts, val_ratio, seed))
    n_files = Counter(split for split, _, _ in parts)
    n_rows = {
        split: sum(len(rows) for s, _, rows in parts if s == split and rows is not None) for split in SPLITS
    }
    made = ArraySplit(
        str(out / "train"),
        str(out / "val"),
        n_files["train"],
        n_files["val"],
        by,
        seed,
        val_ratio,
        *(n_rows[split] if by == "sequence" else None for split in SPLITS),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        out.rmdir()  # it is empty
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        for split, path, rows in parts:
            _link(path, work / split / path.relative_to(source), rows)
        if (source / "tokenizer.json").exists():
            (work / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
        write_json(work / SPLIT_RECORD, {"source": str(source.resolve()), **asdict(made)})
        work.chmod(0o755)
        work.rename(out)  # atomic
        fsync_path(out.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return made


def _sequences(source: Path) -> dict[Path, int]:
    """Number of sequences of each array below `source`, all of one length."""
    files = find_files(source)
    if not files:
        raise UserError(f"{source}: no arrays (.npy, .npz, .pt) below it")
    shapes = [open_array(path).shape for path in files]
    for path, shape in zip(files, shapes, strict=True):
        if shape[1] != shapes[0][1]:
            raise UserError(f"{path}: sequences of {shape[1]} tokens, not {shapes[0][1]} as in {files[0]}")
    return {path: shape[0] for path, shape in zip(files, shapes, strict=True)}


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
        raise UserError(
            f"--output-path {out}: is not empty; nothing is overwritten: remove it or choose another"
        )


Part = tuple[str, Path, np.ndarray | None]
"""Split, file, and which of its rows; None: all."""


def _names(files: Iterable[Path]) -> list[list[Path]]:
    names: dict[tuple[int, int], list[Path]] = {}
    for path in files:
        status = path.stat()
        names.setdefault((status.st_dev, status.st_ino), []).append(path)
    return list(names.values())


def _by_file(source: Path, counts: dict[Path, int], val_ratio: float, seed: int) -> Iterator[Part]:
    groups = _names(counts)
    if len(groups) < 2:
        raise UserError(f"{source}: a single file cannot be split by file; give --by sequence")
    ordered = sorted(groups, key=lambda group: _hash(seed, group[0].relative_to(source).as_posix()))
    wanted, val = max(1, round(val_ratio * len(counts))), set[Path]()
    for group in ordered[:-1]:  # one item stays for training
        if len(val) < wanted:
            val |= set(group)
    return ((("val" if path in val else "train"), path, None) for path in counts)


def _by_sequence(source: Path, counts: dict[Path, int], val_ratio: float, seed: int) -> Iterator[Part]:
    paths = [names[0] for names in _names(counts)]  # several names of a file must not repeat its sequences
    total = sum(counts[path] for path in paths)
    if total < 2:
        raise UserError(f"{source}: {total} sequence(s) cannot be split")
    n_val = min(max(1, round(val_ratio * total)), total - 1)
    validates = np.zeros(total, bool)
    validates[Permutation(total, f"danalab division 1|{seed}".encode())(np.arange(n_val))] = True
    for path, mine in zip(
        paths, np.split(validates, np.cumsum([counts[path] for path in paths])[:-1]), strict=True
    ):
        for split, chosen in (("train", ~mine), ("val", mine)):
            if chosen.any():
                yield split, path, np.flatnonzero(chosen)


def _link(path: Path, link: Path, rows: np.ndarray | None) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path.resolve())
    if rows is not None:
        listed = link.with_name(link.name + ".rows")
        with naming(listed), open(listed, "wb") as file:
            np.save(file, rows.astype(np.int64), allow_pickle=False)


def _hash(seed: int, name: str) -> bytes:
    text = f"danalab division 1|{seed}|{name}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()

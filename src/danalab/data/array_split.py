"""`danalab data split`: train/ and val/ of a folder of arrays.

    by file       links; the files with the smallest keyed hashes validate, in the number that the ratio gives
    by sequence   copies of the sequences of each split, as .npy; a link where a file lies in one split

Several names of one file are one item. The choice depends on the seed and on relative paths (by file), or on the seed
and each sequence's position (by sequence).
"""

import hashlib
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from danalab.data.array_files import find_files, has_splits, open_array
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
    train_sequences: int
    val_sequences: int
    by: str
    seed: int
    val_ratio: float


def split_arrays(
    source: str | Path, out: str | Path, *, val_ratio: float = 0.01, seed: int = 42, by: str = "file"
) -> ArraySplit:
    """Make `out`/train and `out`/val of the arrays in `source`, with the same subfolders.

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
    validates = (_by_file if by == "file" else _by_sequence)(source, counts, val_ratio, seed)
    rows = {
        "train": {path: np.flatnonzero(~mine) for path, mine in validates.items() if not mine.all()},
        "val": {path: np.flatnonzero(mine) for path, mine in validates.items() if mine.any()},
    }
    n_files = {split: len(files) for split, files in rows.items()}
    n_rows = {split: sum(map(len, files.values())) for split, files in rows.items()}
    made = ArraySplit(
        train_dir=str(out / "train"),
        val_dir=str(out / "val"),
        train_files=n_files["train"],
        val_files=n_files["val"],
        train_sequences=n_rows["train"],
        val_sequences=n_rows["val"],
        by=by,
        seed=seed,
        val_ratio=val_ratio,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        out.rmdir()  # it is empty
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        for split, files in rows.items():
            for path, chosen in files.items():
                place = work / split / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                if len(chosen) == counts[path]:
                    place.symlink_to(path.resolve())
                else:
                    _copy(path, place, chosen)
        if (source / "tokenizer.json").exists():
            (work / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
        write_json(work / "split.json", {"source": str(source.resolve()), **asdict(made)})
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
        raise UserError(f"{source}: no arrays (.npy, .pt) below it")
    shapes = {path: open_array(path).shape for path in files}
    length = shapes[files[0]][1]
    for path, shape in shapes.items():
        if shape[1] != length:
            raise UserError(f"{path}: sequences of {shape[1]} tokens, not {length} as in {files[0]}")
    return {path: shape[0] for path, shape in shapes.items()}


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


def _by_file(source: Path, counts: dict[Path, int], ratio: float, seed: int) -> dict[Path, np.ndarray]:
    """The sequences of each file that validate: all or none."""

    def drawn(group: list[Path]) -> bytes:
        text = f"danalab division 1|{seed}|{group[0].relative_to(source).as_posix()}"
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()

    groups = _names(counts)
    if len(groups) < 2:
        raise UserError(f"{source}: a single file cannot be split by file; give --by sequence")
    wanted, val = max(1, round(ratio * len(counts))), set[Path]()
    for group in sorted(groups, key=drawn)[:-1]:  # one item stays for training
        if len(val) < wanted:
            val |= set(group)
    return {path: np.full(count, path in val) for path, count in counts.items()}


def _by_sequence(source: Path, counts: dict[Path, int], ratio: float, seed: int) -> dict[Path, np.ndarray]:
    """Which sequences of each file validate."""
    paths = [names[0] for names in _names(counts)]  # several names of a file must not repeat its sequences
    ends = np.cumsum([counts[path] for path in paths])
    total = int(ends[-1])
    if total < 2:
        raise UserError(f"{source}: {total} sequence(s) cannot be split")
    n_val = min(max(1, round(ratio * total)), total - 1)
    validates = np.zeros(total, bool)
    validates[Permutation(total, f"danalab division 1|{seed}".encode())(np.arange(n_val))] = True
    return dict(zip(paths, np.split(validates, ends[:-1]), strict=True))


def _names(files: dict[Path, int]) -> list[list[Path]]:
    """The names of each file."""
    names: dict[tuple[int, int], list[Path]] = {}
    for path in files:
        status = path.stat()
        names.setdefault((status.st_dev, status.st_ino), []).append(path)
    return list(names.values())


def _copy(path: Path, place: Path, rows: np.ndarray) -> None:
    array = open_array(path)
    copy = place if place.suffix == ".npy" else place.with_name(f"{place.name}.npy")
    with naming(copy):
        made = np.lib.format.open_memmap(copy, "w+", array.dtype, (len(rows), array.shape[1]))
        np.take(array, rows, axis=0, out=made, mode="clip")  # "raise" would need memory for all of them
        made.flush()

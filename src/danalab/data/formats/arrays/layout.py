"""The layout "arrays": .npy, .npz or .pt files below a folder, or below its `train/` and `val/` (`danalab data split`).

A file `NAME.rows` (a .npy of row numbers) beside an array `NAME` lists the sequences that belong to the split.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from danalab.data.formats.arrays.dataset import ArrayDataset, ArrayPart
from danalab.data.formats.arrays.files import READERS, BadArrayError, find_files
from danalab.data.formats.arrays.scan import scan_all
from danalab.data.formats.layouts import Layout
from danalab.data.tokenizers import load_tokenizer
from danalab.errors import UserError, first_line
from danalab.files import read_json, validated

SPLITS = ("train", "val")
SPLIT_RECORD = "split.json"
"""Written by `danalab data split`."""


@dataclass(frozen=True)
class SplitRecord:
    """The part of `split.json` that opening the folder needs."""

    by: Literal["file", "sequence"]


def has_splits(folder: Path) -> bool:
    """Whether the folder has train/ and val/."""
    return all((folder / split).is_dir() for split in SPLITS)


def holds_arrays(folder: Path) -> bool:
    """Whether there is any array file below the folder, by its name."""
    for _, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(Path(name).suffix in READERS and not name.startswith(".") for name in names):
            return True
    return False


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The array files of each split; without splits, all files are "train"."""
    if has_splits(folder):
        return {split: find_files(folder / split) for split in SPLITS}
    return {"train": find_files(folder)}


def chosen_rows(path: Path, sequences: int, required: bool) -> np.ndarray | None:
    """The row numbers in `path`.rows; None without such a file.

    Raises:
        BadArrayError: `required` and absent, or not a list of distinct rows of the array.
    """
    file = path.with_name(path.name + ".rows")
    if file.exists() and not file.is_file():
        raise BadArrayError(file, "not a regular file")
    try:
        rows = np.lib.format.open_memmap(file, mode="r")  # a header may claim any size; a map has the file's
    except FileNotFoundError:
        if required:
            raise BadArrayError(path, f"{file.name}, which lists the sequences of the split, is missing") from None
        return None
    except Exception as error:  # a damaged file may raise almost anything
        raise BadArrayError(file, f"damaged: {first_line(error)}") from error
    if rows.ndim != 1 or rows.dtype.kind not in "ui" or len(rows) == 0:
        raise BadArrayError(file, "not a list of row numbers")
    rows = rows.astype(np.int64)
    if rows.min() < 0 or rows.max() >= sequences or len(np.unique(rows)) < len(rows):
        raise BadArrayError(file, f"not distinct rows of an array of {sequences} sequences")
    return rows


def by_sequence(folder: Path) -> bool:
    """Whether the folder was split by sequence."""
    record = folder / SPLIT_RECORD
    return record.is_file() and validated(SplitRecord, read_json(record), record).by == "sequence"


def _open(folder: Path, split: str) -> ArrayDataset:
    files = files_by_split(folder)
    if split not in files:
        if folder.name == split and has_splits(folder.parent):  # FOLDER/val names the split itself
            return _open(folder.parent, split)
        raise UserError(
            f"{folder}: no split '{split}' of these arrays; make one with "
            f"danalab data split {folder} --output-path {folder}-split"
        )
    if not files[split]:
        raise UserError(f"{folder}: the split '{split}' has no arrays")
    scans = {name: scan_all(paths) for name, paths in files.items()}
    required = by_sequence(folder)
    parts = [
        ArrayPart(path, scan, chosen_rows(path, scan.sequences, required))
        for path, scan in zip(files[split], scans[split], strict=True)
    ]
    _require_one_length(parts)
    tokenizer = load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None
    largest = max(scan.max_id for split_scans in scans.values() for scan in split_scans)
    dataset = ArrayDataset(folder, split, parts, largest + 1, tokenizer, partial(_open, folder))
    if tokenizer is not None:
        dataset.check_vocab(tokenizer.vocab_size)
    return dataset


def _require_one_length(parts: list[ArrayPart]) -> None:
    first = parts[0]
    for part in parts:
        if part.scan.length != first.scan.length:
            raise UserError(
                f"{part.path}: sequences of {part.scan.length} tokens, but {first.scan.length} in {first.path}; "
                "all must have the same length"
            )


# Nothing is recorded of arrays, so there is nothing to compare them with; `danalab.data.check` reads them through.
LAYOUT = Layout("arrays", holds_arrays, lambda folder: list(files_by_split(folder)), _open, lambda folder: iter(()))

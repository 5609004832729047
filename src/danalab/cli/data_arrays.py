"""The verbs of `danalab data` for data that is tokens already: validate, split."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class ValidateFlags:
    path: tyro.conf.Positional[Path]
    """Folder of any layout (arrays, shards, bare files), or one .npy, .npz or .pt file."""
    vocab_size: int | None = None
    """Ids must be below this; default that of the tokenizer beside the data, else GPT-2's 50,257."""
    seq_len: int | None = None
    """Tokens that each sequence of an array must have; default as most have."""
    allow_duplicates: bool = False
    """Equal sequences and files are warned of, and do not make the data invalid."""
    results: Path | None = None
    """Where the results are written as JSON; default validation_results.json in the folder, if it can be written."""
    json: bool = False
    """Print one JSON object on standard output."""


def validate(flags: ValidateFlags) -> int:
    """Read a data set through and list everything that is wrong with it; exit code 1 when anything is."""
    from rich.console import Console

    from danalab.data.check import validate as validate_data
    from danalab.data.check.advice import advise
    from danalab.data.formats.arrays.layout import is_divided
    from danalab.errors import UserError
    from danalab.files import write_json

    console = Console(stderr=True)
    with console.status("reading") as status:
        result = validate_data(
            flags.path,
            vocab_size=flags.vocab_size,
            seq_len=flags.seq_len,
            allow_duplicates=flags.allow_duplicates,
            on_file=lambda done, total: status.update(f"reading file {done + 1} of {total}"),
        )
    advice = advise(result, divided=is_divided(flags.path)) if result.valid else None
    facts = {**result.as_dict(), "recommendations": advice.as_dict() if advice else None}
    if flags.json:
        print(json.dumps(facts))
    else:
        for finding in result.errors:
            print(f"✗ {finding}")
        for finding in result.warnings:
            print(f"! {finding}")
        print(result.as_text())
        if advice is not None:
            print(advice.as_text())
    place = flags.results or (flags.path if flags.path.is_dir() else flags.path.parent) / "validation_results.json"
    try:
        write_json(place, facts)
        print(f"results in {place}", file=sys.stderr)
    except OSError as error:
        if flags.results is not None:
            raise UserError(f"--results {place}: {error.strerror or error}") from error
        print(f"results not written: {place}: {error.strerror or error}; give --results FILE", file=sys.stderr)
    return 0 if result.valid else 1


@dataclass(frozen=True, kw_only=True)
class SplitFlags:
    path: tyro.conf.Positional[Path]
    """Folder of arrays (.npy, .npz, .pt), in folders of any depth."""
    output_path: Path
    """New folder for train/ and val/, outside of the data folder."""
    val_ratio: float = 0.01
    """Share that validates, at least one file (sequence)."""
    seed: int = 42
    """Which ones."""
    by: Literal["file", "sequence"] = "file"
    """What is divided: whole files, or the sequences inside of them."""
    json: bool = False
    """Print one JSON object on standard output."""


def split(flags: SplitFlags) -> None:
    """Divide a folder of arrays into train/ and val/ of symbolic links; nothing is copied or overwritten."""
    from danalab.data.formats.arrays.division import divide

    made = divide(flags.path, flags.output_path, val_ratio=flags.val_ratio, seed=flags.seed, by=flags.by)
    if flags.json:
        print(json.dumps(asdict(made)))
        return
    inside = f" ({made.train_sequences:,} and {made.val_sequences:,} sequences)" if made.by == "sequence" else ""
    print(f"{made.train_dir}: {made.train_files:,} files; {made.val_dir}: {made.val_files:,} files{inside}")

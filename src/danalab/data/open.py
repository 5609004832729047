"""From what a person writes after `--data` to the folder of a data set."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from danalab.data.formats import manifest as manifests
from danalab.data.formats.layouts import layout_of
from danalab.data.formats.manifest import Manifest
from danalab.data.sources import SOURCES
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.errors import UserError, nearest

_log = logging.getLogger(__name__)


def datasets_folder() -> Path:
    """Where data sets lie by default: `$DATASETS_DIR`, else ./datasets."""
    return Path(os.environ.get("DATASETS_DIR") or "datasets")


def dataset_folder(
    source: str, tokenizer: str, loaded: Tokenizer | None = None, datasets_dir: str | Path | None = None
) -> Path:
    """NAME-TOKENIZER below the folder of data sets; a tokenizer given by its path is called by name and fingerprint."""
    if loaded is not None and tokenizer != loaded.name:
        tokenizer = f"{loaded.name}-{loaded.fingerprint[:8]}"
    return Path(datasets_dir or datasets_folder()) / f"{source}-{tokenizer}"


@dataclass(frozen=True)
class Unprepared:
    """A data set that is made when a run first needs it: from a source that needs neither network nor input files."""

    source: str
    tokenizer: str
    folder: Path


def resolve_dataset(
    data: str | Path, tokenizer: str | Path | None = None, datasets_dir: str | Path | None = None
) -> Path:
    """The folder of a data set; one that is `Unprepared` is prepared now. Arguments and errors as of `find_dataset`."""
    found = find_dataset(data, tokenizer, datasets_dir)
    if isinstance(found, Path):
        return found
    from danalab.data.preparation.pipeline import prepare

    _log.info("%s: preparing it now from the source %s with %s", found.folder, found.source, found.tokenizer)
    return prepare(found.source, found.tokenizer, found.folder)


def find_dataset(
    data: str | Path, tokenizer: str | Path | None = None, datasets_dir: str | Path | None = None
) -> Path | Unprepared:
    """The folder of a data set, or what would be made; writes nothing.

    Args:
        data: a folder (as it is, or below `datasets_dir`), or the name of a source, which means
            `datasets_dir`/NAME-TOKENIZER, or for GPT-2's tokens the folder that the literature's scripts write (e.g.
            fineweb-10BT).
        tokenizer: `bytes`, `gpt2`, `bpe-N` or a path; by default the source's. For a folder it must be the folder's.
        datasets_dir: by default `$DATASETS_DIR`, else ./datasets.

    Raises:
        UserError: no such data set (says how to make it), or one that was written with another tokenizer.
    """
    root = Path(datasets_dir or datasets_folder())
    for folder in (Path(data), root / data):
        if layout_of(folder):
            _check_tokenizer(folder, tokenizer)
            return folder
    name = str(data)
    if name not in SOURCES:
        if Path(data).is_dir():
            raise UserError(f"{data}: no data set in this folder (no {manifests.NAME}, no train.bin, no arrays)")
        known = SOURCES.names()
        raise UserError(
            f"no data set '{name}'{nearest(name, known)}: give a folder made by danalab data prepare, "
            f"or a source: {', '.join(known)}"
        )
    source = SOURCES.get(name)
    wanted = str(tokenizer or source.default_tokenizer)
    is_path = Path(wanted).exists()
    folder = dataset_folder(source.name, wanted, load_tokenizer(wanted) if is_path else None, root)
    if (folder / manifests.NAME).is_file():
        return folder
    if wanted == "gpt2":
        for foreign in (root / name for name in source.folders):
            if layout_of(foreign):
                return foreign
    if not source.ready:
        more = " --input PATH..." if source.name == "text" else ""
        raise UserError(
            f"{folder}: not prepared yet; run danalab data prepare {source.name}{more} "
            f"--tokenizer {wanted} --out {folder}"
        )
    return Unprepared(source.name, wanted, folder)


def _check_tokenizer(folder: Path, tokenizer: str | Path | None) -> None:
    if tokenizer is None or not (folder / manifests.NAME).is_file():
        return
    made = Manifest.read(folder).tokenizer
    if str(tokenizer) != made.name and not (
        Path(tokenizer).exists() and load_tokenizer(tokenizer).fingerprint == made.fingerprint
    ):
        raise UserError(f"{folder}: written with the tokenizer {made.name}, not {tokenizer}; leave --tokenizer out")

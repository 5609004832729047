"""From the argument of `--data` to an open data set, its folder, its vocabulary, or its facts.

NAME, FOLDER, FILE.txt, a:0.7,b:0.3  ->  find_dataset: a folder, or the plan to prepare it  ->  its layout  ->  Dataset
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.data.arrays import Arrays
from danalab.data.bare import BareFiles
from danalab.data.dataset import Dataset
from danalab.data.formats.prepared import Shards
from danalab.data.formats.shards import MANIFEST
from danalab.data.layout import Layout
from danalab.data.mixture import MixedDataset, parse_mixture
from danalab.data.sources import SOURCES, TextSource
from danalab.data.sources.base import Source, datasets_folder
from danalab.data.tokenizers import (
    UNKNOWN,
    Gpt2Tokenizer,
    eos_of_size,
    load_tokenizer,
    requested_size,
    tokenizer_path,
)
from danalab.data.tokenizers.base import padded
from danalab.data.vocabulary import Vocabulary, merge_vocabularies
from danalab.errors import UserError
from danalab.tables import lookup

LAYOUTS: tuple[type[Layout], ...] = (Shards, BareFiles, Arrays)
"""In the order in which they are tried: files of one dimension are bare files, of two dimensions arrays."""
NOTHING = f"no {MANIFEST}, no train.bin, no arrays"
_log = logging.getLogger(__name__)


def open_data(data: str | Path, tokenizer: str | Path | None = None, split: str = "train") -> Dataset:
    """Open the argument of `--data`: a folder, a text, the name of a source, or a mixture of them."""
    pairs = parse_mixture(str(data))
    layouts = [require_layout(resolve_dataset(name, tokenizer)) for name, _ in pairs]
    for layout in layouts if split == "train" else ():
        for remark in layout.remarks():
            _log.warning("%s: %s", layout.folder, remark)
    parts = [layout.open(split) for layout in layouts]
    return MixedDataset(parts, [weight for _, weight in pairs]) if len(parts) > 1 else parts[0]


def is_there(data: str | Path, tokenizer: str | Path | None = None) -> bool:
    """Whether `open_data` finds all data sets of the argument of `--data` without preparing any."""
    try:
        parts = parse_mixture(str(data))
        return all(isinstance(find_dataset(name, tokenizer), Path) for name, _ in parts)
    except UserError:
        return False


def open_dataset(path: str | Path, split: str = "train") -> Dataset:
    """Open a split, "train" or "val", of a data set in any layout; nothing is read into memory.

    UserError: no such data set or split, a shard that does not match its manifest, or ids outside of the vocabulary.
    """
    return require_layout(Path(path)).open(split)


def layout_of(folder: Path) -> type[Layout] | None:
    """The layout of the data set in `folder`; None when there is none."""
    if not os.path.isdir(folder):  # unlike `Path.is_dir`, False for names that are too long
        return None
    return next((layout for layout in LAYOUTS if layout.matches(folder)), None)


def require_layout(folder: Path) -> Layout:
    """The data set in `folder`."""
    layout = layout_of(folder)
    if layout is None:
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: no such folder; make a data set with danalab data prepare")
        raise UserError(f"{folder}: no data set in it ({NOTHING}): see docs/data.md")
    return layout(folder)


@dataclass(frozen=True)
class PreparationPlan:
    """A data set that the first run will prepare."""

    source: str | Source
    tokenizer: str
    folder: Path


def resolve_dataset(
    data: str | Path, tokenizer: str | Path | None = None, datasets_dir: str | Path | None = None
) -> Path:
    """The folder of a data set, prepared now if it is only planned. Arguments and errors of `find_dataset`."""
    planned = find_dataset(data, tokenizer, datasets_dir)
    if isinstance(planned, Path):
        return planned
    from danalab.data.preparation import prepare

    _log.warning("preparing %s with the tokenizer %s: %s", data, planned.tokenizer, planned.folder)
    return prepare(planned.source, planned.tokenizer, planned.folder)


def find_dataset(
    data: str | Path,
    tokenizer: str | Path | None = None,
    datasets_dir: str | Path | None = None,
    *,
    only_planned: bool = False,
) -> Path | PreparationPlan:
    """The folder of a data set, or the plan to prepare it; writes nothing.

    Args:
        data: a folder (a path, or a name below `datasets_dir`), a text file or a folder of texts, or the name of a
            source. A source means `datasets_dir`/NAME-TOKENIZER, or for GPT-2's tokens the folder that the literature's
            scripts write (e.g. fineweb-10BT).
        tokenizer: `bytes`, `gpt2`, `bpe-N` or a path; by default the source's. If `data` is a folder, it must match.
        datasets_dir: by default `$DATASETS_DIR`, else ./datasets.
        only_planned: also plan sources that are prepared by `danalab data prepare` only.
    """
    root = Path(datasets_dir or datasets_folder())
    for folder in (Path(data), root / data):
        if layout_of(folder):
            _check_tokenizer(folder, tokenizer)
            return folder
    name = str(data)
    if name not in SOURCES and os.path.exists(data):
        planned = plan_texts(Path(data), tokenizer, root)
        return planned.folder if (planned.folder / MANIFEST).is_file() else planned
    if os.sep in name:
        raise UserError(f"{name}: no such file or folder")
    source: type[Source] = lookup(SOURCES, name, "file, folder or data source")
    wanted = tokenizer or source.default_tokenizer
    folder = source.dataset_folder(wanted, root)
    if (folder / MANIFEST).is_file():
        return folder
    if wanted == "gpt2":
        for foreign in (root / name for name in source.folders):
            if layout_of(foreign):
                return foreign
    if not (source.ready or only_planned):
        more = " --input PATH..." if source is TextSource else ""
        command = f"danalab data prepare {source.name}{more} --tokenizer {wanted} --out {folder}"
        raise UserError(
            f"{folder}: not prepared yet; run {command}, or train on text that is here: --data stdlib"
        )
    return PreparationPlan(source.name, str(wanted), folder)


def plan_texts(place: Path, tokenizer: str | Path | None, root: Path) -> PreparationPlan:
    """The preparation of a text file or a folder of texts; changed texts are another data set."""
    try:
        source = TextSource([place])
    except UserError as error:
        raise UserError(f"{place}: neither a data set ({NOTHING}) nor text ({error})") from error
    wanted = str(tokenizer or source.default_tokenizer)
    path = tokenizer_path(wanted)
    kind = load_tokenizer(path).fingerprint[:8] if path else wanted
    digest = hashlib.sha256(source.identity().encode("utf-8", "surrogateescape")).hexdigest()
    return PreparationPlan(source, wanted, root / f"{place.resolve().stem}-{kind}-{digest[:8]}")


def _check_tokenizer(folder: Path, tokenizer: str | Path | None) -> None:
    if tokenizer is None:
        return
    path, dataset = tokenizer_path(tokenizer), open_dataset(folder)
    name = dataset.tokenizer_name
    if path is not None and name != UNKNOWN:
        same = load_tokenizer(path).fingerprint == dataset.tokenizer.fingerprint
    else:
        same = name == str(tokenizer)
    if not same:
        raise UserError(
            f"{folder}: written with the tokenizer {name}, not {tokenizer}; leave --tokenizer out"
        )


def vocabulary_of(data: str | Path, tokenizer: str | Path | None = None) -> Vocabulary:
    """The vocabulary of the argument of `--data`: of existing data, or that which the prepared data will have."""

    def of(part: str | Path) -> Vocabulary:
        planned = find_dataset(part, tokenizer, only_planned=True)
        if isinstance(planned, Path):
            return open_dataset(planned)
        if size := requested_size(planned.tokenizer):
            name, ids, eos_id = planned.tokenizer, padded(size), eos_of_size(size)
        else:  # GPT-2's tables may have to be fetched
            made = (
                Gpt2Tokenizer
                if planned.tokenizer == Gpt2Tokenizer.name
                else load_tokenizer(planned.tokenizer)
            )
            name, ids, eos_id = made.name, padded(made.n_tokens), made.specials[made.eos]
        return Vocabulary(planned.folder.name, name, ids, ids, eos_id)

    parts = [of(name) for name, _ in parse_mixture(str(data))]
    return merge_vocabularies(parts) if len(parts) > 1 else parts[0]


def describe(path: str | Path) -> dict[str, Any]:
    """The facts of a data set: path, layout, remarks, source, tokenizer, vocab_size, eos_id, and for each split its
    tokens, shards, documents, text_bytes, bytes_per_token, max_id and fingerprint (None where it is not recorded).
    """
    layout = require_layout(Path(path))
    splits: dict[str, Any] = {}
    for name in layout.files:
        dataset = layout.open(name)
        entries = layout.facts(dataset.store.shards)
        documents, text_bytes = (
            None if layout.source is None else sum(getattr(entry, fact) for entry in entries)
            for fact in ("documents", "text_bytes")
        )
        splits[name] = {
            "tokens": dataset.n_tokens,
            "shards": dataset.n_files,
            "documents": documents,
            "text_bytes": text_bytes,
            "bytes_per_token": None if text_bytes is None else text_bytes / max(dataset.n_tokens, 1),
            "max_id": dataset.max_id,
            "fingerprint": dataset.fingerprint,
        }
    vocabulary = layout.open(next(iter(layout.files)))
    return {
        "path": str(layout.folder),
        "layout": layout.name,
        "remarks": layout.remarks(),
        "source": layout.source,
        "tokenizer": vocabulary.tokenizer_name,
        "vocab_size": vocabulary.vocab_size,
        "eos_id": vocabulary.eos_id,
        "splits": splits,
    }

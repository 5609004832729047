"""From the argument of `--data` to an open data set, its folder, its vocabulary, or its facts.

NAME, FOLDER, a:0.7,b:0.3  ->  find_dataset: a folder, or the plan to prepare it  ->  layout of the folder  ->  Dataset
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.data.formats.shards import MANIFEST, Manifest
from danalab.data.sources import SOURCES, command_for_texts
from danalab.data.sources.base import datasets_folder
from danalab.data.tokenizers import (
    UNKNOWN,
    Gpt2Tokenizer,
    eos_of_size,
    load_tokenizer,
    requested_size,
    tokenizer_path,
)  # fmt: skip
from danalab.data.tokenizers.base import padded
from danalab.data.vocabulary import Vocabulary, VocabularyInfo, merge_vocabularies
from danalab.errors import UserError, nearest

if TYPE_CHECKING:
    from danalab.data.dataset import Dataset
    from danalab.data.layout import DataLayout

_log = logging.getLogger(__name__)


def open_data(data: str | Path, tokenizer: str | Path | None = None, split: str = "train") -> Dataset:
    """Open the argument of `--data`: a folder, the name of a source, or a mixture of them."""
    from danalab.data.mixture import MixedDataset, parse_mixture

    pairs = parse_mixture(str(data))
    folders = [resolve_dataset(name, tokenizer) for name, _ in pairs or [(data, 1.0)]]
    for folder in folders if split == "train" else ():
        for remark in require_layout(folder).remarks(folder):
            _log.warning("%s: %s", folder, remark)
    parts = [open_dataset(folder, split) for folder in folders]
    return parts[0] if pairs is None else MixedDataset(parts, [weight for _, weight in pairs])


def is_there(data: str | Path, tokenizer: str | Path | None = None) -> bool:
    """Whether `open_data` finds all data sets of the argument of `--data` without preparing any."""
    from danalab.data.mixture import parse_mixture

    try:
        names = [name for name, _ in parse_mixture(str(data)) or [(data, 1.0)]]
        return all(isinstance(find_dataset(name, tokenizer), Path) for name in names)
    except UserError:
        return False


def open_dataset(path: str | Path, split: str = "train") -> Dataset:
    """Open a split, "train" or "val", of a data set in any layout; nothing is read into memory.

    UserError: no such data set or split, a shard that does not match its manifest, or ids outside of the vocabulary.
    """
    folder = Path(path)
    return require_layout(folder).open(folder, split)


@lru_cache(maxsize=1)
def layouts() -> tuple[DataLayout, ...]:
    """All layouts, in the order in which they are tried: ours, then those of other software."""
    from danalab.data.formats.prepared import SHARDS
    from danalab.data.layout import LAYOUTS

    return SHARDS, *(LAYOUTS.get(name) for name in LAYOUTS.names())


def layout_of(folder: Path) -> DataLayout | None:
    """The layout of the data set in `folder`; None when there is none."""
    if not os.path.isdir(folder):  # unlike `Path.is_dir`, False for names that are too long
        return None
    return next((layout for layout in layouts() if layout.matches(folder)), None)


def require_layout(folder: Path) -> DataLayout:
    """The layout of the data set in `folder`."""
    layout = layout_of(folder)
    if layout is None:
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: no such folder; make a data set with danalab data prepare")
        raise UserError(f"{folder}: no data set in it (no {MANIFEST}, no train.bin, no arrays): see docs/data.md")
    return layout


@dataclass(frozen=True)
class PreparationPlan:
    """A data set that the first run will prepare, from a source that needs neither network nor input files."""

    source: str
    tokenizer: str
    folder: Path


def resolve_dataset(
    data: str | Path, tokenizer: str | Path | None = None, datasets_dir: str | Path | None = None
) -> Path:
    """The folder of a data set, prepared now if it is only planned. Arguments and errors of `find_dataset`."""
    planned = find_dataset(data, tokenizer, datasets_dir)
    if isinstance(planned, Path):
        return planned
    from danalab.data.preparation.pipeline import prepare

    _log.info("%s: preparing it now from the source %s with %s", planned.folder, planned.source, planned.tokenizer)
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
        data: a folder (a path, or a name below `datasets_dir`), or the name of a source. A source means
            `datasets_dir`/NAME-TOKENIZER, or for GPT-2's tokens the folder that the literature's scripts write (e.g.
            fineweb-10BT).
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
    if name not in SOURCES:
        if os.path.isdir(data):
            missing = f"no {MANIFEST}, no train.bin, no arrays"
            raise UserError(f"{data}: no data set in this folder ({missing}); of texts: {command_for_texts(data)}")
        if os.path.isfile(data):
            raise UserError(f"{data} is a file, no data set; of a text: {command_for_texts(data)}")
        known = SOURCES.names()
        raise UserError(
            f"no data set '{name}'{nearest(name, known)}; two commands that make one: 'danalab data prepare stdlib' "
            "(Python's own files, no network), 'danalab data prepare text --input FILE_OR_FOLDER' (your texts); "
            f"sources: {', '.join(known)}"
        )
    source = SOURCES.get(name)
    wanted = str(tokenizer or source.default_tokenizer)
    path = tokenizer_path(tokenizer or source.default_tokenizer)
    folder = source.dataset_folder(wanted, load_tokenizer(path) if path else None, root)
    if (folder / MANIFEST).is_file():
        return folder
    if wanted == "gpt2" and path is None:
        for foreign in (root / name for name in source.folders):
            if layout_of(foreign):
                return foreign
    if not (source.ready or only_planned):
        more = " --input PATH..." if source.name == "text" else ""
        command = f"danalab data prepare {source.name}{more} --tokenizer {wanted} --out {folder}"
        raise UserError(f"{folder}: not prepared yet; run {command}, or train on text that is here: --data stdlib")
    return PreparationPlan(source.name, wanted, folder)


def _check_tokenizer(folder: Path, tokenizer: str | Path | None) -> None:
    if tokenizer is None:
        return
    path = tokenizer_path(tokenizer)
    shards = (folder / MANIFEST).is_file()
    name = Manifest.read(folder).tokenizer.name if shards else open_dataset(folder).tokenizer_name
    if path is None and str(tokenizer) == name:
        return
    if path is not None and name != UNKNOWN:
        made = Manifest.read(folder).tokenizer if shards else open_dataset(folder).tokenizer
        if load_tokenizer(path).fingerprint == made.fingerprint:
            return
    raise UserError(f"{folder}: written with the tokenizer {name}, not {tokenizer}; leave --tokenizer out")


def vocabulary_of(data: str | Path, tokenizer: str | Path | None = None) -> Vocabulary:
    """The vocabulary of the argument of `--data`: of existing data, or that which the prepared data will have."""
    from danalab.data.mixture import parse_mixture

    def of(name: str | Path) -> Vocabulary:
        planned = find_dataset(name, tokenizer, only_planned=True)
        if isinstance(planned, Path):
            return open_dataset(planned)
        if size := requested_size(planned.tokenizer):
            facts = planned.tokenizer, padded(size), padded(size), eos_of_size(size)
        else:  # GPT-2's tables may have to be fetched
            made = Gpt2Tokenizer if planned.tokenizer == Gpt2Tokenizer.name else load_tokenizer(planned.tokenizer)
            facts = made.name, padded(made.n_tokens), padded(made.n_tokens), made.specials[made.eos]
        return VocabularyInfo(planned.folder.name, *facts)

    pairs = parse_mixture(str(data))
    return of(data) if pairs is None else merge_vocabularies([of(name) for name, _ in pairs])


def describe(path: str | Path) -> dict[str, Any]:
    """The facts of a data set: path, layout, remarks, source, tokenizer, vocab_size, eos_id, and for each split its
    tokens, shards, documents, text_bytes, bytes_per_token, max_id and fingerprint (None where it is not recorded).
    """
    folder = Path(path)
    layout = require_layout(folder)
    opened = {name: layout.open(folder, name) for name in layout.splits(folder)}
    facts = layout.facts(folder)
    splits: dict[str, Any] = {}
    for name, dataset in opened.items():
        text_bytes = facts["text_bytes"].get(name)
        splits[name] = {
            "tokens": dataset.n_tokens,
            "shards": dataset.n_files,
            "documents": facts["documents"].get(name),
            "text_bytes": text_bytes,
            "bytes_per_token": text_bytes / max(dataset.n_tokens, 1) if text_bytes is not None else None,
            "max_id": dataset.max_id,
            "fingerprint": dataset.fingerprint,
        }
    first = next(iter(opened.values()))
    return {
        "path": str(folder),
        "layout": layout.name,
        "remarks": list(layout.remarks(folder)),
        "source": facts["source"],
        "tokenizer": first.tokenizer_name,
        "vocab_size": first.vocab_size,
        "eos_id": first.eos_id,
        "splits": splits,
    }

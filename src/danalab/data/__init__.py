"""Data: sources -> tokenizer -> shards -> loader.

    source (documents) -> split (keyed hash) -> tokenizer (all cores) -> DATASET/{train,val}-00000.bin + manifest.json
    open_dataset(DATASET).batches(...)[step]   a pure function of the dataset, the seed, the global batch and the step

Names are loaded on first use: preparing data needs no torch, and reading it no tokenizer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.data.dataset import Dataset, open_dataset
    from danalab.data.loader import Batches, Sequential
    from danalab.data.mixture import open_data
    from danalab.data.preparation import prepare
    from danalab.data.resolve import resolve_dataset
    from danalab.data.sources import SOURCES, Source
    from danalab.data.tokenizers import Tokenizer, load_tokenizer, train_bpe
    from danalab.data.vocabulary import Vocabulary, vocabulary_of

_HOMES = {
    "Dataset": "dataset",
    "open_data": "mixture",
    "open_dataset": "dataset",
    "Batches": "loader",
    "Sequential": "loader",
    "prepare": "preparation",
    "resolve_dataset": "resolve",
    "SOURCES": "sources",
    "Source": "sources",
    "Tokenizer": "tokenizers",
    "load_tokenizer": "tokenizers",
    "train_bpe": "tokenizers",
    "Vocabulary": "vocabulary",
    "vocabulary_of": "vocabulary",
}

__all__ = [
    "SOURCES",
    "Batches",
    "Dataset",
    "Sequential",
    "Source",
    "Tokenizer",
    "Vocabulary",
    "load_tokenizer",
    "open_data",
    "open_dataset",
    "prepare",
    "resolve_dataset",
    "train_bpe",
    "vocabulary_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

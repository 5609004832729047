"""Data: sources -> tokenizer -> shards -> loader.

source (documents) -> split (keyed hash) -> tokenizer (all cores) -> DATASET/{train,val}-00000.bin + manifest.json
open_dataset(DATASET).batches(...)[step]   a pure function of the dataset, the seed, the global batch and the step
"""

from danalab.data.dataset import Dataset
from danalab.data.open import open_data, open_dataset, resolve_dataset, vocabulary_of
from danalab.data.order.batches import Batches, Sequential
from danalab.data.preparation import prepare
from danalab.data.sources import SOURCES, Source
from danalab.data.tokenizers import Tokenizer, load_tokenizer, train_bpe
from danalab.data.vocabulary import Vocabulary

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

"""Data: sources -> tokenizer -> shards -> loader.

    source (documents) -> split (keyed hash) -> tokenizer (all cores) -> DATASET/{train,val}-00000.bin + manifest.json
    open_dataset(DATASET).batches(...)[step]   a pure function of the dataset, the seed, the global batch and the step

Names are loaded on first use: preparing data needs no torch, and reading it no tokenizer.
"""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

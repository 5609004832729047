"""`validate`: read a whole data set, list all its faults, and compute its statistics.

Reading streams; it needs a few MiB, and 16 bytes per sequence of an array.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from danalab.data.array_check import check_arrays
from danalab.data.array_files import READERS
from danalab.data.formats.shards import MAX_VOCAB
from danalab.data.layout import CheckOptions, Finding, Validation
from danalab.data.open import NOTHING, layout_of
from danalab.errors import UserError

GPT2_VOCAB = 50_257


def validate(path: str | Path, **options: Any) -> Validation:
    """Read a whole data set, or a single array file, and list its faults.

    Args:
        vocab_size: upper bound of the ids; by default that of the tokenizer beside the data, else GPT-2's 50,257.
        seq_len: required tokens per sequence of an array; by default the most common length.
        allow_duplicates: report equal sequences as warnings, not as errors.
        on_file: called with the number of finished files and of all files.
    """
    path, wanted = Path(path), CheckOptions(**options)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file or folder")
    for name, value in (("--vocab-size", wanted.vocab_size), ("--seq-len", wanted.seq_len)):
        if value is not None and not 1 <= value <= MAX_VOCAB:
            raise UserError(f"{name} is {value}; it must be between 1 and {MAX_VOCAB:,}")
    result = Validation(str(path), "none", "", 0, wanted.vocab_size or GPT2_VOCAB)
    try:
        if path.is_file() and path.suffix in READERS:
            result.layout = "arrays"
            check_arrays(path, result, wanted)
        elif path.is_file():
            result.errors.append(Finding(str(path), f"not an array file ({', '.join(READERS)})"))
        elif (kind := layout_of(path)) is None:
            result.errors.append(Finding(str(path), f"no data set in it: {NOTHING}"))
        else:
            result.layout = kind.name
            layout = kind(path)
            layout.check(result, wanted)
            if result.valid:
                result.warnings += [Finding(str(path), remark) for remark in layout.remarks()]
    except UserError as error:  # of a damaged manifest: nothing else can be checked
        result.errors.append(Finding(str(path), str(error).removeprefix(f"{path}: ")))
    result.errors.sort(key=lambda finding: finding.file)
    return result

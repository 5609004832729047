"""GPT-2's encoding, run by `tiktoken`: 50,257 ids, padded to 50,304; 50256 ends a document.

The tables are two files by OpenAI. They are read from tiktoken's cache (`$TIKTOKEN_CACHE_DIR`, by default
`~/.cache/danalab/tiktoken`), else from the network; a prepared data set has them in its `tokenizer.json`. The chat
marks are in the padding, ids 50257 to 50264: a base model never sees them.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from danalab.data.tokenizers.base import EOS, Tokenizer, from_printable, reject_surrogates, specials_from
from danalab.data.tokenizers.plain import byte_level_json
from danalab.errors import UserError
from danalab.files import cache_folder, environment_path, read_json, write_atomically

_ADDRESS = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
TABLES = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
"""File -> SHA-256."""
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_N_MERGEABLE = 50256


def tables_folder() -> Path:
    """The folder of the tables: `$TIKTOKEN_CACHE_DIR`, else `$XDG_CACHE_HOME/danalab/tiktoken`."""
    return environment_path("TIKTOKEN_CACHE_DIR") or cache_folder("tiktoken")


def cached_name(table: str) -> str:
    """The name of a table in tiktoken's cache: the SHA-1 of its address."""
    return hashlib.sha1((_ADDRESS + table).encode()).hexdigest()


def install_tables(origin: str | Path) -> Path:
    """Copy GPT-2's two tables, in the original's names or ours, into the cache after a check of SHA-256."""
    origin = Path(origin)
    contents: dict[str, bytes] = {}
    for table, expected in TABLES.items():
        paths = [path for path in (origin / table, origin / cached_name(table)) if path.is_file()]
        if not paths:
            raise UserError(f"{origin}: no {table} (nor {cached_name(table)}) in this folder")
        contents[table] = paths[0].read_bytes()
        actual = hashlib.sha256(contents[table]).hexdigest()
        if actual != expected:
            raise UserError(
                f"{paths[0]}: not GPT-2's {table}: sha256 {actual[:12]}..., expected {expected[:12]}..."
            )
    folder = tables_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for table, content in contents.items():
        write_atomically(folder / cached_name(table), content)
    return folder


class Gpt2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding."""

    name = "gpt2"
    n_tokens = _N_MERGEABLE + 1
    specials = specials_from(_N_MERGEABLE)

    def __init__(self, ranks: dict[bytes, int], merges: Sequence[Sequence[str]]):
        """`ranks`: token -> id of the 50,256 mergeable tokens; `merges`: their pairs in printable form."""
        import tiktoken

        self._ranks, self._merges = ranks, merges
        self._engine = tiktoken.Encoding(
            "gpt2", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={EOS: _N_MERGEABLE}
        )

    @classmethod
    @lru_cache(maxsize=1)
    def from_cache(cls) -> "Gpt2Tokenizer":
        """Load the tables from the cache, or else from the network."""
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks

        folder = tables_folder()
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)  # where tiktoken looks for them
        try:
            ranks = data_gym_to_mergeable_bpe_ranks(
                vocab_bpe_file=_ADDRESS + "vocab.bpe",
                encoder_json_file=_ADDRESS + "encoder.json",
                vocab_bpe_hash=TABLES["vocab.bpe"],
                encoder_json_hash=TABLES["encoder.json"],
            )
            lines = (folder / cached_name("vocab.bpe")).read_text(encoding="utf-8").rstrip("\n").split("\n")
            return cls(ranks, [line.split() for line in lines[1:]])  # the first line is the version
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise UserError(
                f"GPT-2's tables are not in {folder} and cannot be fetched ({type(error).__name__}): put vocab.bpe and "
                "encoder.json in a folder and run danalab data fetch-gpt2 --from FOLDER, or set TIKTOKEN_CACHE_DIR"
            ) from error

    @classmethod
    def from_file(cls, file: str | Path) -> "Gpt2Tokenizer":
        """Load the tables from a saved `tokenizer.json`."""
        try:
            model = read_json(file)["model"]
            ranks = {from_printable(token): id_ for token, id_ in model["vocab"].items()}
            merges = model["merges"]
            complete = sorted(ranks.values()) == list(range(_N_MERGEABLE))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: not a byte-level tokenizer.json: {error!r}") from error
        if not complete:
            raise UserError(f"{file}: {len(ranks)} tokens, which are not GPT-2's {_N_MERGEABLE}")
        return cls(ranks, merges)

    def _token_table(self) -> list[bytes]:
        return sorted(self._ranks, key=self._ranks.__getitem__)

    def encode_array(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            if not text.isascii():  # tiktoken would replace a lone surrogate by U+FFFD
                reject_surrogates(text)
        return [self._engine.encode_to_numpy(text, disallowed_special=()) for text in texts]

    def to_json(self) -> str:
        content = byte_level_json(self._token_table(), self.specials)
        content["model"]["merges"] = self._merges
        return json.dumps(content)

"""Prepare corpora as token shards; look at data sets, validate and split them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from danalab.cli import data_arrays


@dataclass(frozen=True, kw_only=True)
class PrepareFlags:
    name: tyro.conf.Positional[str]
    """Source: stdlib (Python's own library, no network) or text (your files, with --input)."""
    tokenizer: str | None = None
    """bytes, gpt2, bpe-N (trained on a sample of the corpus), or the path of a tokenizer; default bpe-4096."""
    out: Path | None = None
    """Folder of the data set; default NAME-TOKENIZER in $DATASETS_DIR, or in ./datasets."""
    input: tuple[str, ...] = ()
    """Files or folders of the source text: .txt .md .jsonl .parquet, also .gz and .zst."""
    val_input: tuple[str, ...] = ()
    """Validation files of your own; without them a share of the documents is taken."""
    val_fraction: float | None = None
    """Share of the documents that validate, chosen by a hash; default 0.01 (stdlib: 0.02)."""
    shard_tokens: int = 100_000_000
    """Size of a shard [tokens]."""
    workers: int | None = None
    """Processes that tokenise; default one a core."""
    json: bool = False
    """Print what was made as one JSON object on standard output."""


def prepare(flags: PrepareFlags) -> None:
    """Tokenise a corpus into shards; a killed preparation goes on when it is run again."""
    from danalab.data.preparation import prepare as prepare_dataset

    folder = prepare_dataset(
        flags.name,
        flags.tokenizer,
        flags.out,
        inputs=flags.input,
        val_inputs=flags.val_input,
        val_fraction=flags.val_fraction,
        shard_tokens=flags.shard_tokens,
        workers=flags.workers,
    )
    if flags.json:
        _print_json(folder)
    else:
        print(folder)


@dataclass(frozen=True, kw_only=True)
class InfoFlags:
    path: tyro.conf.Positional[Path]
    """Folder of a data set, prepared or of bare uint16 files."""
    verify: bool = False
    """Also read every shard through and compare its hash with the manifest's."""
    json: bool = False
    """Print one JSON object on standard output."""


def info(flags: InfoFlags) -> None:
    """Tokens, documents, shards, tokenizer and source of a data set."""
    from danalab.data.description import describe

    if flags.json:
        _print_json(flags.path, verify=flags.verify)
        return
    facts = describe(flags.path, verify=flags.verify)
    rows = [("path", facts["path"])]
    if facts["source"]:
        rows.append(("source", f"{facts['source']['name']} (licence: {facts['source']['licence']})"))
    rows.append(("tokenizer", f"{facts['tokenizer']}, vocabulary {facts['vocab_size']:,}, documents end with id "
                              f"{facts['eos_id']}"))  # fmt: skip
    for split, part in facts["splits"].items():
        line = f"{part['tokens']:,} tokens in {part['shards']} shard(s), ids up to {part['max_id']}"
        if part["documents"] is not None:
            line += f", {part['documents']:,} documents, {part['bytes_per_token']:.3f} bytes a token"
        rows.append((split, line))
    if flags.verify:
        rows.append(("verified", "every shard has the content that was written"))
    for name, value in rows:
        print(f"{name:<10} {value}")


def _print_json(folder: Path) -> None:
    from danalab.data.description import describe

    json.dump(describe(folder), sys.stdout)
    print()


SUBVERBS = {
    "prepare": (PrepareFlags, prepare),
    "info": (InfoFlags, info),
    "validate": (data_arrays.ValidateFlags, data_arrays.validate),
    "split": (data_arrays.SplitFlags, data_arrays.split),
}

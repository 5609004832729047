"""Prepare corpora as token shards; look at data sets, validate and split them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from danalab.cli import data_arrays
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PrepareFlags:
    name: tyro.conf.Positional[str]
    """Source: stdlib (Python's own library, no network), text (your files, with --input), or a corpus of the hub:
    fineweb-10bt, fineweb-100bt, fineweb-edu, c4, openwebtext2, redpajama, redpajama-v2, slimpajama, wikitext, arxiv,
    shakespeare-char."""
    tokenizer: str | None = None
    """bytes, characters, gpt2, bpe-N (trained on a sample of the corpus), or the path of a tokenizer; default bpe-4096
    for stdlib and text, characters for shakespeare-char, else gpt2."""
    out: Path | None = None
    """Folder of the data set; default NAME-TOKENIZER in $DATASETS_DIR, or in ./datasets."""
    input: tuple[str, ...] = ()
    """Files or folders of the source text: .txt .md .jsonl .parquet, also .gz and .zst. For a corpus of the hub: one
    folder with the files of its repository (see danalab data download), in place of the network."""
    val_input: tuple[str, ...] = ()
    """Validation files of your own; without them a share of the documents is taken."""
    val_fraction: float | None = None
    """Share of the documents that validate, chosen by a hash; default the source's, see docs/data.md."""
    val_documents: int | None = None
    """How many documents validate in place of a share: the first ones, and whatever equals them."""
    max_documents: int | None = None
    """Documents to take at most; of each split, where the source has validation files of its own."""
    max_tokens: int | None = None
    """Training tokens to take, about: up to the end of the document that reaches them."""
    shard_tokens: int = 100_000_000
    """Size of a shard [tokens]."""
    workers: int | None = None
    """Threads (below 60 MB of text) or processes that tokenise; default one a core."""
    dry_run: bool = False
    """Only say what would be fetched from the hub, and how much that is."""
    json: bool = False
    """Print what was made as one JSON object on standard output."""


def prepare(flags: PrepareFlags) -> None:
    """Tokenise a corpus into shards; a killed preparation goes on when it is run again."""
    if flags.dry_run:
        _show_offer(flags.name, flags.input, flags.json)
        return
    from danalab.data.preparation.pipeline import prepare as prepare_dataset

    folder = prepare_dataset(
        flags.name,
        flags.tokenizer,
        flags.out,
        inputs=flags.input,
        val_inputs=flags.val_input,
        val_fraction=flags.val_fraction,
        val_documents=flags.val_documents,
        max_documents=flags.max_documents,
        max_tokens=flags.max_tokens,
        shard_tokens=flags.shard_tokens,
        workers=flags.workers,
    )
    if flags.json:
        _print_json(folder)
    else:
        print(folder)


@dataclass(frozen=True, kw_only=True)
class DownloadFlags:
    name: tyro.conf.Positional[str]
    """Corpus of the hub, e.g. fineweb-100bt."""
    local_dir: Path
    """Folder for its files, in the layout of the hub's repository."""
    workers: int = 8
    """Files fetched at a time."""
    dry_run: bool = False
    """Only say what would be fetched, and how much that is."""
    json: bool = False
    """Print one JSON object on standard output."""


def download(flags: DownloadFlags) -> None:
    """Fetch the files of a corpus, to prepare them later or elsewhere; goes on where it was stopped."""
    if flags.dry_run:
        _show_offer(flags.name, (), flags.json)
        return
    if flags.workers < 1:
        raise UserError(f"--workers {flags.workers}: at least 1 is needed")
    from danalab.data.preparation.download import download as fetch

    folder = fetch(flags.name, flags.local_dir, flags.workers)
    if flags.json:
        json.dump({"path": str(folder)}, sys.stdout)
        print()
    else:
        print(f"{folder}; next: danalab data prepare {flags.name} --input {folder}")


def _show_offer(name: str, inputs: tuple[str, ...], as_json: bool) -> None:
    from danalab.data.preparation.download import offer

    found = offer(name, inputs)
    if as_json:
        json.dump(found.as_dict(), sys.stdout)
        print()
        return
    size = f"{found.bytes / 1e9:,.3g} GB" if found.bytes is not None else "of unknown size"
    rows = [("source", f"{found.source} (licence: {found.licence})"), ("repository", found.repository)]
    if found.checked:
        rows += [("commit", found.commit or "none: a local copy"), ("to read", f"{size} in {found.files:,} files")]
    else:
        rows += [("to read", f"about {size}, as recorded in danalab; not checked: {found.reason}")]
    for key, value in rows:
        print(f"{key:<10} {value}")


@dataclass(frozen=True, kw_only=True)
class VerifyFlags:
    path: tyro.conf.Positional[Path]
    """Folder of a data set in any layout, or of a download."""
    record: bool = False
    """For bare token files, which hold no hashes: write them to checksums.json, to be compared from now on."""
    json: bool = False
    """Print one JSON object on standard output."""


def verify(flags: VerifyFlags) -> int:
    """Read a data set through and compare it with its manifest; exit code 1 with each bad file named."""
    from danalab.data.check.description import verify as faults_of

    if flags.record:
        from danalab.data.formats.raw_bin import record

        record(flags.path)
    faults = faults_of(flags.path)
    if flags.json:
        listed = [{"place": fault.place, "reason": fault.reason} for fault in faults]
        json.dump({"path": str(flags.path), "valid": not faults, "faults": listed}, sys.stdout)
        print()
    else:
        for fault in faults:
            print(fault)
        print(f"{flags.path}: {len(faults)} faults" if faults else f"{flags.path}: every file is as it was written")
    return 1 if faults else 0


@dataclass(frozen=True, kw_only=True)
class InfoFlags:
    path: tyro.conf.Positional[Path]
    """Folder of a data set, in any layout."""
    json: bool = False
    """Print one JSON object on standard output."""


def info(flags: InfoFlags) -> None:
    """Tokens, documents, shards, tokenizer and source of a data set."""
    from danalab.data.check.description import describe

    if flags.json:
        _print_json(flags.path)
        return
    facts = describe(flags.path)
    rows = [("path", facts["path"]), ("layout", facts["layout"])]
    if facts["source"]:
        rows.append(("source", f"{facts['source']['name']} (licence: {facts['source']['licence']})"))
    ends = "" if facts["eos_id"] is None else f", documents end with id {facts['eos_id']}"
    rows.append(("tokenizer", f"{facts['tokenizer']}, vocabulary {facts['vocab_size']:,}{ends}"))
    for split, part in facts["splits"].items():
        line = f"{part['tokens']:,} tokens in {part['shards']} shard(s), ids up to {part['max_id']}"
        if part["documents"] is not None:
            line += f", {part['documents']:,} documents, {part['bytes_per_token']:.3f} bytes a token"
        rows.append((split, line))
    for name, value in rows:
        print(f"{name:<10} {value}")


def _print_json(folder: Path) -> None:
    from danalab.data.check.description import describe

    json.dump(describe(folder), sys.stdout)
    print()


SUBVERBS = {
    "prepare": (PrepareFlags, prepare),
    "download": (DownloadFlags, download),
    "info": (InfoFlags, info),
    "verify": (VerifyFlags, verify),
    "validate": (data_arrays.ValidateFlags, data_arrays.validate),
    "split": (data_arrays.SplitFlags, data_arrays.split),
}

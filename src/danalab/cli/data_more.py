"""Commands of `danalab data` that only some need: fetch a corpus, check data, split arrays, measure a tokenizer."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.cli.data import SUBVERBS, show_offer
from danalab.errors import UserError
from danalab.train.config.fields import PathText


@dataclass(frozen=True, kw_only=True)
class DownloadFlags(JsonFlags):
    name: Positional[str]
    """Corpus of the hub, e.g. fineweb-100bt."""
    local_dir: Path
    """Folder for its files, in the layout of the hub's repository."""
    workers: int = 8
    """Parallel downloads."""
    dry_run: bool = False
    """Only print what would be fetched, and its size."""


def download(flags: DownloadFlags) -> None:
    """Fetch the files of a corpus, to prepare them later or elsewhere; resumable."""
    if flags.dry_run:
        show_offer(flags, flags.name)
        return
    from danalab.data.download import download as fetch

    folder = fetch(flags.name, flags.local_dir, flags.workers)
    if not flags.print_json({"path": str(folder)}):
        print(f"{folder}; next: danalab data prepare {flags.name} --input {folder}")


@dataclass(frozen=True, kw_only=True)
class ValidateFlags(JsonFlags):
    path: Positional[Path]
    """Folder of any layout (arrays, shards, bare files, a download), or one .npy, .npz or .pt file."""
    vocab_size: int | None = None
    """Upper bound of the ids; default that of the tokenizer beside the data, else GPT-2's 50,257."""
    seq_len: int | None = None
    """Required tokens per sequence of an array; default the most common length."""
    allow_duplicates: bool = False
    """Report equal sequences and files as warnings, not as errors."""
    record: bool = False
    """Bare token files, which have no checksums: first write their hashes to checksums.json."""
    results: Path | None = None
    """File for the results as JSON; default validation_results.json in the folder, if it is writable."""


def validate(flags: ValidateFlags) -> int:
    """Read a whole data set and list its faults; exit code 1 if there are any."""
    from rich.console import Console

    from danalab.data.advice import advise
    from danalab.data.arrays import has_splits
    from danalab.data.bare import record
    from danalab.data.validation import validate as validate_data
    from danalab.files import write_json

    if flags.record:
        record(flags.path)
    console = Console(stderr=True)
    with console.status("reading") as status:
        result = validate_data(
            flags.path, vocab_size=flags.vocab_size, seq_len=flags.seq_len, allow_duplicates=flags.allow_duplicates,
            on_file=lambda done, total: status.update(f"reading file {done + 1} of {total}"),
        )  # fmt: skip
    advice = advise(result, divided=has_splits(flags.path)) if result.valid and result.total_tokens else None
    facts = {**result.as_dict(), "recommendations": advice.as_dict() if advice else None}
    if not flags.print_json(facts):
        for finding in result.errors:
            print(f"✗ {finding}")
        for finding in result.warnings:
            print(f"! {finding}")
        print(result.as_text())
        if advice is not None:
            print(advice.as_text())
    place = flags.results or (flags.path if flags.path.is_dir() else flags.path.parent) / "validation_results.json"
    try:
        write_json(place, facts)
        print(f"results in {place}", file=sys.stderr)
    except OSError as error:
        if flags.results is not None:
            raise UserError(f"--results {place}: {error.strerror or error}") from error
        print(f"results not written: {place}: {error.strerror or error}; give --results FILE", file=sys.stderr)
    return 0 if result.valid else 1


def verify(flags: ValidateFlags) -> int:
    """The former name of validate."""
    return validate(flags)


@dataclass(frozen=True, kw_only=True)
class SplitFlags(JsonFlags):
    path: Positional[Path]
    """Folder of arrays (.npy, .npz, .pt), in folders of any depth."""
    output_path: Path
    """New folder for train/ and val/, outside the data folder."""
    val_ratio: float = 0.01
    """Share of the files (sequences) that validate, at least one."""
    seed: int = 42
    """Seed of the choice."""
    by: Literal["file", "sequence"] = "file"
    """Split whole files, or the sequences inside of them."""


def split(flags: SplitFlags) -> None:
    """Split a folder of arrays into train/ and val/ of symbolic links; nothing is copied or overwritten."""
    from danalab.data.array_split import split_arrays

    made = split_arrays(flags.path, flags.output_path, val_ratio=flags.val_ratio, seed=flags.seed, by=flags.by)
    if flags.print_json(asdict(made)):
        return
    inside = f" ({made.train_sequences:,} and {made.val_sequences:,} sequences)" if made.by == "sequence" else ""
    print(f"{made.train_dir}: {made.train_files:,} files; {made.val_dir}: {made.val_files:,} files{inside}")


@dataclass(frozen=True, kw_only=True)
class EvalTokenizerFlags(JsonFlags):
    tokenizer: Positional[PathText]
    """bytes, gpt2, or the path of a tokenizer.json or of the folder that holds one."""
    input: tuple[PathText, ...] = ()
    """More files to measure, besides the built-in samples: .txt .md .jsonl .ndjson .json .parquet, also .gz, .zst."""


def eval_tokenizer(flags: EvalTokenizerFlags) -> None:
    """Bytes per token on several kinds of text, compared with GPT-2's."""
    from danalab.data.compression import measure, samples
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(flags.tokenizer)
    texts = samples()
    for path in flags.input:
        texts[path] = "".join(TextSource([path]).iter_documents())
        if not texts[path]:
            raise UserError(f"--input {path}: no text in it")
    try:
        reference = load_tokenizer("gpt2")
    except UserError as error:
        print(f"without a comparison with GPT-2: {error}", file=sys.stderr)
        reference = None
    results = measure(tokenizer, texts, reference)
    rows = {
        r.text: {"bytes": r.bytes, "tokens": r.tokens, "bytes_per_token": r.bytes_per_token,
                 "gpt2_bytes_per_token": r.reference_bytes_per_token}
        for r in results
    }  # fmt: skip
    if flags.print_json({"tokenizer": tokenizer.name, "n_tokens": tokenizer.n_tokens, "texts": rows}):
        return
    width = max(len(r.text) for r in results)
    print(f"{'text':<{width}}  {'bytes':>9}  {'tokens':>9}  {'bytes/token':>13}  {'gpt2':>6}  {'ratio':>6}")
    for r in results:
        other = r.reference_bytes_per_token
        beside = f"{other:>6.3f}  {r.bytes_per_token / other:>6.3f}" if other else f"{'-':>6}  {'-':>6}"
        print(f"{r.text:<{width}}  {r.bytes:>9,}  {r.tokens:>9,}  {r.bytes_per_token:>13.3f}  {beside}")


SUBVERBS.add("download", (DownloadFlags, download))
SUBVERBS.add("validate", (ValidateFlags, validate))
SUBVERBS.add("verify", (ValidateFlags, verify))
SUBVERBS.add("split", (SplitFlags, split))
SUBVERBS.add("eval-tokenizer", (EvalTokenizerFlags, eval_tokenizer))

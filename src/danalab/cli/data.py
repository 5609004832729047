"""Prepare corpora as token shards; describe, validate and split data sets; train and evaluate tokenizers."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError
from danalab.train.config.flags import Answer, JsonFlags, PathText, Positional, setting


@dataclass(frozen=True, kw_only=True)
class PrepareFlags(JsonFlags):
    name: Positional[str] = setting(
        help="A file or folder of text, or a source: stdlib (Python's standard library, no network), text, "
        "synthetic (a generated language of known entropy, with --language), or a corpus of the "
        "hub: fineweb-10bt, fineweb-100bt, fineweb-edu, c4, openwebtext2, redpajama, redpajama-v2, "
        "slimpajama, wikitext, arxiv, shakespeare-char."
    )
    tokenizer: PathText | None = setting(
        None,
        "bytes, characters, gpt2, bpe-N (trained on a sample of the corpus), or the path of a "
        "tokenizer; default bpe-4096 for stdlib and text, characters for shakespeare-char, else "
        "gpt2.",
    )
    out: Path | None = setting(
        None, "Folder of the data set; default NAME-TOKENIZER in $DATASETS_DIR, or in ./datasets."
    )
    input: tuple[PathText, ...] = setting(
        (),
        "Files or folders of the source text: .txt .md .jsonl .ndjson .json .parquet, also .gz and "
        ".zst. For a corpus of the hub: one folder with the files of its repository (see danalab "
        "data download), instead of the network.",
    )
    text_column: str = setting(
        "text", "Field of the lines, or column of the tables, that holds the text; for the source text."
    )
    language: tuple[str, ...] = setting(
        (),
        "Settings of the source synthetic, KEY=VALUE: words, zipf, levels, level_exponent, answers, "
        "questions, document_tokens, seed; see docs/data.md.",
    )
    val_input: tuple[PathText, ...] = setting(
        (), "Validation files of your own; without them a share of the documents is taken."
    )
    val_fraction: Annotated[float, Gt(0), Lt(1)] | None = setting(
        None,
        "Share of the documents that validate, chosen by a hash; default the source's, see docs/data.md.",
    )
    max_tokens: Annotated[int, Ge(1)] | None = setting(
        None, "Training tokens, up to the end of the document that reaches this number."
    )


def prepare(flags: PrepareFlags) -> Answer:
    """Tokenise a corpus into shards; after a kill, run it again to resume."""
    from danalab.data.open import describe, plan_texts
    from danalab.data.preparation import prepare as prepare_dataset
    from danalab.data.sources import SOURCES, SyntheticSource, TextSource
    from danalab.data.sources.base import datasets_folder
    from danalab.data.sources.synthetic import Language
    from danalab.data.sources.text import TEXT_COLUMN

    if flags.name not in SOURCES and Path(flags.name).exists():
        # Into the folder that train --data NAME takes, too.
        out = flags.out or plan_texts(Path(flags.name), flags.tokenizer, datasets_folder()).folder
        flags = replace(flags, name=TextSource.name, input=(flags.name, *flags.input), out=out)
    source = flags.name
    if flags.language:
        if flags.name != SyntheticSource.name or flags.input or flags.val_input:
            raise UserError("--language: only for danalab data prepare synthetic, which takes no --input")
        source = SyntheticSource(Language.parse(flags.language))
    if flags.text_column != TEXT_COLUMN:
        if flags.name != TextSource.name or not flags.input:
            raise UserError("--text-column: only for danalab data prepare text --input PATH...")
        source = TextSource(flags.input, flags.val_input, flags.text_column)
    folder = prepare_dataset(
        source,
        flags.tokenizer,
        flags.out,
        inputs=flags.input,
        val_inputs=flags.val_input,
        val_fraction=flags.val_fraction,
        max_tokens=flags.max_tokens,
    )
    return Answer(describe(folder) if flags.json else None, [str(folder)])


@dataclass(frozen=True, kw_only=True)
class InfoFlags(JsonFlags):
    path: Positional[Path] = setting(help="Folder of a data set, in any layout.")


def info(flags: InfoFlags) -> Answer:
    """Tokens, documents, shards, tokenizer and source of a data set."""
    from danalab.data.open import describe

    facts = describe(flags.path)
    rows = [("path", facts["path"]), ("layout", facts["layout"])]
    if facts["source"]:
        rows.append(("source", f"{facts['source'].get('name')} (licence: {facts['source'].get('licence')})"))
        if isinstance(entropy := facts["source"].get("entropy"), float):
            rows.append(("entropy", f"{entropy:.6f} nats per token: no model can have a lower loss"))
    ends = "" if facts["eos_id"] is None else f", documents end with id {facts['eos_id']}"
    rows.append(("tokenizer", f"{facts['tokenizer']}, vocabulary {facts['vocab_size']:,}{ends}"))
    for split, part in facts["splits"].items():
        line = f"{part['tokens']:,} tokens in {part['shards']} shard(s), ids up to {part['max_id']}"
        if part["documents"] is not None:
            line += f", {part['documents']:,} documents, {part['bytes_per_token']:.3f} bytes per token"
        rows.append((split, line))
    rows += [("note", remark) for remark in facts["remarks"]]
    return Answer(facts, [f"{name:<10} {value}" for name, value in rows])


@dataclass(frozen=True, kw_only=True)
class TrainTokenizerFlags(JsonFlags):
    vocab_size: int = setting(help="Number of ids, including the 256 bytes and 9 specials.")
    input: tuple[PathText, ...] = setting(
        help="Files or folders of text: .txt .md .jsonl .ndjson .json .parquet, also .gz and .zst."
    )
    text_column: str = setting("text", "Field of the lines, or column of the tables, that holds the text.")
    out: Path = setting(help="Folder for tokenizer.json.")


def train_tokenizer(flags: TrainTokenizerFlags) -> Answer:
    """Train a byte-level BPE on your text; the resulting tokenizer.json also loads in transformers."""
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import train_bpe

    if (flags.out / "tokenizer.json").exists():
        raise UserError(f"{flags.out}: holds a tokenizer.json already; choose another --out")
    source = TextSource(flags.input, text_column=flags.text_column)
    tokenizer = train_bpe(source.iter_documents(), flags.vocab_size)
    file = tokenizer.save(flags.out)
    print(source.report, file=sys.stderr)
    place = (
        flags.out if flags.out.name != str(flags.out) else f"./{flags.out}"
    )  # a path, and no tokenizer's name
    line = f"{file}: {tokenizer.name}, {tokenizer.n_tokens:,} ids; use it with --tokenizer {place}"
    facts = {"path": str(file), "name": tokenizer.name, "fingerprint": tokenizer.fingerprint}
    return Answer(facts, [line])


@dataclass(frozen=True, kw_only=True)
class FetchGpt2Flags(JsonFlags):
    from_: Path | None = setting(
        None, "Folder with vocab.bpe and encoder.json, as OpenAI published them; default: download them."
    )


def fetch_gpt2(flags: FetchGpt2Flags) -> Answer:
    """Download GPT-2's two tables, or copy them, into tiktoken's cache ($TIKTOKEN_CACHE_DIR); checks their hashes."""
    from danalab.data.tokenizers.gpt2 import Gpt2Tokenizer, install_tables, tables_folder

    if flags.from_ is None:
        Gpt2Tokenizer.from_cache()
    folder = install_tables(flags.from_ or tables_folder())
    return Answer({"cache": str(folder)}, [f"GPT-2's tables are in {folder}"])


@dataclass(frozen=True, kw_only=True)
class DownloadFlags(JsonFlags):
    name: Positional[str] = setting(help="Corpus of the hub, e.g. fineweb-100bt.")
    local_dir: Path = setting(help="Folder for its files, in the layout of the hub's repository.")


def download(flags: DownloadFlags) -> Answer:
    """Fetch the files of a corpus, to prepare them later or elsewhere; resumable."""
    from danalab.data.sources import make_source
    from danalab.data.sources.hub import CORPORA, HubSource

    source, folder = make_source(flags.name), flags.local_dir
    if not isinstance(source, HubSource):
        hub = ", ".join(corpus.name for corpus in CORPORA)
        raise UserError(f"the source '{flags.name}' is not of the hub: nothing to fetch; of the hub: {hub}")
    source.download(folder)
    return Answer(
        {"path": str(folder)}, [f"{folder}; next: danalab data prepare {flags.name} --input {folder}"]
    )


@dataclass(frozen=True, kw_only=True)
class ValidateFlags(JsonFlags):
    path: Positional[Path] = setting(
        help="Folder of any layout (arrays, shards, bare files), or one .npy or .pt file."
    )
    vocab_size: Annotated[int, Ge(1), Lt(1 << 28)] | None = setting(
        None, "Vocabulary size; default that of the tokenizer in the data folder, else GPT-2's 50,257."
    )
    seq_len: Annotated[int, Ge(1)] | None = setting(
        None, "Required tokens per sequence of an array; default the most common length."
    )
    allow_duplicates: bool = setting(False, "Report equal sequences and files as warnings, not as errors.")


def validate(flags: ValidateFlags) -> Answer:
    """Read a whole data set and list its faults; exit code 1 if there are any."""
    from danalab.data.arrays import has_splits
    from danalab.data.validation import validate as validate_data
    from danalab.files import write_json
    from danalab.train.advice import advice_text, advise

    result = validate_data(
        flags.path, flags.vocab_size, flags.seq_len, allow_duplicates=flags.allow_duplicates
    )
    advice = advise(result, divided=has_splits(flags.path)) if result.valid and result.total_tokens else None
    facts = {**result.as_dict(), "recommendations": advice}
    place = (flags.path if flags.path.is_dir() else flags.path.parent) / "validation_results.json"
    try:
        write_json(place, facts)
        print(f"results in {place}", file=sys.stderr)
    except OSError as error:  # as on a disk that is read-only
        print(f"results not written: {place}: {error.strerror}", file=sys.stderr)
    lines = [*(f"✗ {finding}" for finding in result.errors), *(f"! {finding}" for finding in result.warnings)]
    lines += [result.as_text()] if advice is None else [result.as_text(), advice_text(advice)]
    return Answer(facts, lines, 0 if result.valid else 1)


@dataclass(frozen=True, kw_only=True)
class SplitFlags(JsonFlags):
    path: Positional[Path] = setting(help="Folder of arrays (.npy, .pt), in folders of any depth.")
    output_path: Path = setting(help="New folder for train/ and val/, outside the data folder.")
    val_ratio: Annotated[float, Gt(0), Lt(1)] = setting(
        0.01, "Share of the files (sequences) that validate, at least one."
    )
    seed: int = setting(42, "Seed of the choice.")
    by: Literal["file", "sequence"] = setting("file", "Split whole files, or the sequences inside of them.")


def split(flags: SplitFlags) -> Answer:
    """Split a folder of arrays into train/ and val/: links to files, or copies of sequences."""
    from danalab.data.array_split import split_arrays

    made = split_arrays(
        flags.path, flags.output_path, val_ratio=flags.val_ratio, seed=flags.seed, by=flags.by
    )
    lines = [
        f"{made[f'{part}_dir']}: {made[f'{part}_sequences']:,} sequences in {made[f'{part}_files']:,} files"
        for part in ("train", "val")
    ]
    return Answer(made, lines)


@dataclass(frozen=True, kw_only=True)
class EvalTokenizerFlags(JsonFlags):
    tokenizer: Positional[PathText] = setting(
        help="bytes, gpt2, or the path of a tokenizer.json or of the folder that holds one."
    )
    input: tuple[PathText, ...] = setting(
        (),
        "More files to measure, besides the built-in samples: .txt .md .jsonl .ndjson .json "
        ".parquet, also .gz, .zst.",
    )


def eval_tokenizer(flags: EvalTokenizerFlags) -> Answer:
    """Bytes per token on several kinds of text, compared with GPT-2's."""
    from danalab.data.compression import measure, samples
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import load_tokenizer
    from danalab.experiments.formats import as_text

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
    rows, lines = {}, []
    for name, (size, tokens, others) in measure(tokenizer, texts, reference).items():
        own, other = size / tokens, size / others if others else None
        rows[name] = {"bytes": size, "tokens": tokens, "bytes_per_token": own, "gpt2_bytes_per_token": other}
        beside = [f"{other:.3f}", f"{own / other:.3f}"] if other else ["-", "-"]
        lines.append([name, f"{size:,}", f"{tokens:,}", f"{own:.3f}", *beside])
    table = as_text(["text", "bytes", "tokens", "bytes/token", "gpt2", "ratio"], lines)
    return Answer({"tokenizer": tokenizer.name, "n_tokens": tokenizer.n_tokens, "texts": rows}, [table])


VERBS = {
    "data prepare": (PrepareFlags, prepare),
    "data info": (InfoFlags, info),
    "data validate": (ValidateFlags, validate),
    "data split": (SplitFlags, split),
    "data download": (DownloadFlags, download),
    "data train-tokenizer": (TrainTokenizerFlags, train_tokenizer),
    "data eval-tokenizer": (EvalTokenizerFlags, eval_tokenizer),
    "data fetch-gpt2": (FetchGpt2Flags, fetch_gpt2),
}

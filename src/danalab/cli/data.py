"""Prepare corpora as token shards; describe, validate and split data sets; train and evaluate tokenizers."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.errors import UserError
from danalab.registry import Registry
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.data.sources import SyntheticSource


@dataclass(frozen=True, kw_only=True)
class PrepareFlags(JsonFlags):
    name: Positional[str]
    """Source: stdlib (Python's standard library, no network), text (your files, with --input), synthetic (a generated
    language of known entropy, with --language), or a corpus of the hub:
    fineweb-10bt, fineweb-100bt, fineweb-edu, c4, openwebtext2, redpajama, redpajama-v2, slimpajama, wikitext, arxiv,
    shakespeare-char."""
    tokenizer: PathText | None = None
    """bytes, characters, gpt2, bpe-N (trained on a sample of the corpus), or the path of a tokenizer; default bpe-4096
    for stdlib and text, characters for shakespeare-char, else gpt2."""
    out: Path | None = None
    """Folder of the data set; default NAME-TOKENIZER in $DATASETS_DIR, or in ./datasets."""
    input: tuple[PathText, ...] = ()
    """Files or folders of the source text: .txt .md .jsonl .ndjson .json .parquet, also .gz and .zst. For a corpus of
    the hub: one folder with the files of its repository (see danalab data download), instead of the network."""
    text_column: str = "text"
    """Field of the lines, or column of the tables, that holds the text; for the source text."""
    eos: str | None = None
    """Special token that ends documents, of a tokenizer given by its path; default <|endoftext|>, else the eos_token
    in its tokenizer_config.json."""
    language: tuple[str, ...] = ()
    """Settings of the source synthetic, KEY=VALUE: words, zipf, levels, level_exponent, answers, noise, questions,
    copies, distances, document_tokens, seed; see docs/data.md."""
    val_input: tuple[PathText, ...] = ()
    """Validation files of your own; without them a share of the documents is taken."""
    val_fraction: float | None = None
    """Share of the documents that validate, chosen by a hash; default the source's, see docs/data.md."""
    val_documents: int | None = None
    """Number of documents that validate instead of a share: the first ones and their copies."""
    max_documents: int | None = None
    """Maximum number of documents; of each split, if the source has its own validation files."""
    max_tokens: int | None = None
    """Training tokens, up to the end of the document that reaches this number."""
    shard_tokens: int = 100_000_000
    """Size of a shard [tokens]."""
    workers: int | None = None
    """Threads (below 60 MB of text) or processes that tokenise; default one per core."""
    dry_run: bool = False
    """Only print what would be fetched from the hub, and its size."""


def prepare(flags: PrepareFlags) -> None:
    """Tokenise a corpus into shards; after a kill, run it again to resume."""
    if flags.dry_run:
        show_offer(flags, flags.name, flags.input)
        return
    from danalab.data.preparation.pipeline import prepare as prepare_dataset
    from danalab.data.sources import SOURCES, TextSource
    from danalab.data.sources.text import TEXT_COLUMN

    names = ("val_fraction", "val_documents", "max_documents", "max_tokens", "shard_tokens", "workers", "eos")
    settings = {name: getattr(flags, name) for name in names}
    source = _language(flags) if flags.language else flags.name
    if flags.text_column != TEXT_COLUMN:
        if SOURCES.get(flags.name) is not TextSource or not flags.input:
            raise UserError("--text-column: only for danalab data prepare text --input PATH...")
        source = TextSource(flags.input, flags.val_input, flags.text_column)
    folder = prepare_dataset(
        source, flags.tokenizer, flags.out, inputs=flags.input, val_inputs=flags.val_input, **settings
    )
    if not _printed(flags, folder):
        print(folder)


def _language(flags: PrepareFlags) -> "SyntheticSource":
    from danalab.data.sources import SOURCES, SyntheticSource
    from danalab.data.sources.synthetic import Language

    if SOURCES.get(flags.name) is not SyntheticSource or flags.input or flags.val_input:
        raise UserError("--language: only for danalab data prepare synthetic, which takes no --input")
    return SyntheticSource(Language.parse(flags.language))


def show_offer(flags: JsonFlags, name: str, inputs: tuple[str, ...] = ()) -> None:
    """Print what would be fetched from the hub for the corpus `name`."""
    from danalab.data.sources import hub_source

    plan = hub_source(name).build(inputs, ()).plan_download()
    if flags.print_json(asdict(plan)):
        return
    size = f"{plan.bytes / 1e9:,.3g} GB" if plan.bytes is not None else "of unknown size"
    rows = [("source", f"{plan.source} (licence: {plan.licence})"), ("repository", plan.repository)]
    if plan.checked:
        rows += [("commit", plan.commit or "none: a local copy"), ("to read", f"{size} in {plan.files:,} files")]
    else:
        rows += [("to read", f"about {size}, as recorded in danalab; not checked: {plan.reason}")]
    for key, value in rows:
        print(f"{key:<10} {value}")


@dataclass(frozen=True, kw_only=True)
class InfoFlags(JsonFlags):
    path: Positional[Path]
    """Folder of a data set, in any layout."""


def info(flags: InfoFlags) -> None:
    """Tokens, documents, shards, tokenizer and source of a data set."""
    from danalab.data.open import describe

    if _printed(flags, flags.path):
        return
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
    for name, value in rows:
        print(f"{name:<10} {value}")


def _printed(flags: JsonFlags, folder: Path) -> bool:
    """Whether --json asks for the facts of a data set, which are printed then."""
    from danalab.data.open import describe

    return flags.json and flags.print_json(describe(folder))


@dataclass(frozen=True, kw_only=True)
class TrainTokenizerFlags(JsonFlags):
    vocab_size: int
    """Number of ids, including the 256 bytes and 9 specials."""
    input: tuple[PathText, ...]
    """Files or folders of text: .txt .md .jsonl .ndjson .json .parquet, also .gz and .zst."""
    text_column: str = "text"
    """Field of the lines, or column of the tables, that holds the text."""
    out: Path
    """Folder for tokenizer.json."""
    max_mb: float = 100.0
    """Maximum text to learn from [MB]; later documents are not read."""


def train_tokenizer(flags: TrainTokenizerFlags) -> None:
    """Train a byte-level BPE on your text; the resulting tokenizer.json also loads in transformers."""
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import train_bpe

    if not flags.max_mb > 0:  # also NaN
        raise UserError(f"--max-mb is {flags.max_mb:g}; it must be more than 0")
    if (flags.out / "tokenizer.json").exists():
        raise UserError(f"{flags.out}: holds a tokenizer.json already; choose another --out")
    source = TextSource(flags.input, text_column=flags.text_column)
    tokenizer = train_bpe(_up_to(source.iter_documents(), flags.max_mb * 1e6), flags.vocab_size)
    file = tokenizer.save(flags.out)
    print(source.reading_report(), file=sys.stderr)
    if not flags.print_json({"path": str(file), "name": tokenizer.name, "fingerprint": tokenizer.fingerprint}):
        path = flags.out if flags.out.name != str(flags.out) else f"./{flags.out}"  # a path, and no tokenizer's name
        print(f"{file}: {tokenizer.name}, {tokenizer.n_tokens:,} ids; use it with --tokenizer {path}")


def _up_to(documents: Iterable[str], limit: float) -> Iterator[str]:
    """Documents up to the one that reaches `limit` bytes."""
    for text in documents:
        if limit <= 0:
            return
        limit -= len(text.encode())
        yield text


@dataclass(frozen=True, kw_only=True)
class FetchGpt2Flags(JsonFlags):
    from_: Path | None = None
    """Folder with vocab.bpe and encoder.json, as OpenAI published them; default: download them."""


def fetch_gpt2(flags: FetchGpt2Flags) -> None:
    """Download GPT-2's two tables, or copy them, into tiktoken's cache ($TIKTOKEN_CACHE_DIR); checks their hashes."""
    from danalab.data.tokenizers.gpt2 import Gpt2Tokenizer, install_tables, tables_folder

    if flags.from_ is None:
        Gpt2Tokenizer.from_cache()
    folder = install_tables(flags.from_ or tables_folder())
    if not flags.print_json({"cache": str(folder)}):
        print(f"GPT-2's tables are in {folder}")


SUBVERBS: Registry[tuple[type, Callable[[Any], int | None]]] = Registry("data command")
SUBVERBS.add("prepare", (PrepareFlags, prepare))
SUBVERBS.add("info", (InfoFlags, info))
SUBVERBS.add("train-tokenizer", (TrainTokenizerFlags, train_tokenizer))
SUBVERBS.add("fetch-gpt2", (FetchGpt2Flags, fetch_gpt2))

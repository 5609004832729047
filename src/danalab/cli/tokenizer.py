"""Train and evaluate byte-pair encodings."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from danalab.cli._shared.options import Positional
from danalab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    vocab_size: int
    """Number of ids, including the 256 bytes and 9 specials."""
    input: tuple[str, ...]
    """Files or folders of text: .txt .md .jsonl .parquet, also .gz and .zst."""
    out: Path
    """Folder for tokenizer.json."""
    max_mb: float = 100.0
    """Maximum text to learn from [MB]; later documents are not read."""
    json: bool = False
    """Print one JSON object on standard output."""


def train(flags: TrainFlags) -> None:
    """Train a byte-level BPE on your text; the resulting tokenizer.json also loads in transformers."""
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import train_bpe

    if not flags.max_mb > 0:  # also NaN
        raise UserError(f"--max-mb {flags.max_mb}: more than 0 is needed")
    if (flags.out / "tokenizer.json").exists():
        raise UserError(f"{flags.out}: holds a tokenizer.json already; choose another --out")
    source = TextSource(flags.input)
    tokenizer = train_bpe(_up_to(source.iter_documents(), flags.max_mb * 1e6), flags.vocab_size)
    file = tokenizer.save(flags.out)
    if flags.json:
        print(json.dumps({"path": str(file), "name": tokenizer.name, "fingerprint": tokenizer.fingerprint}))
    else:
        print(f"{file}: {tokenizer.name}, {tokenizer.n_tokens:,} ids; use it with --tokenizer {flags.out}")


def _up_to(documents: Iterable[str], limit: float) -> Iterator[str]:
    """Documents up to the one that reaches `limit` bytes."""
    for text in documents:
        if limit <= 0:
            return
        limit -= len(text.encode())
        yield text


@dataclass(frozen=True, kw_only=True)
class EvalFlags:
    tokenizer: Positional[str]
    """bytes, gpt2, or the path of a tokenizer.json or of the folder that holds one."""
    input: tuple[str, ...] = ()
    """More files to measure, besides the built-in samples: .txt .md .jsonl .parquet, also .gz and .zst."""
    json: bool = False
    """Print one JSON object on standard output."""


def evaluate(flags: EvalFlags) -> None:
    """Bytes per token on several kinds of text, compared with GPT-2's."""
    from danalab.data.sources import TextSource
    from danalab.data.tokenizers import load_tokenizer
    from danalab.data.tokenizers.compression import measure, samples

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
    if flags.json:
        rows = {
            r.text: {"bytes": r.bytes, "tokens": r.tokens, "bytes_per_token": r.bytes_per_token,
                     "gpt2_bytes_per_token": r.reference_bytes_per_token}
            for r in results
        }  # fmt: skip
        print(json.dumps({"tokenizer": tokenizer.name, "n_tokens": tokenizer.n_tokens, "texts": rows}))
        return
    width = max(len(r.text) for r in results)
    print(f"{'text':<{width}}  {'bytes':>9}  {'tokens':>9}  {'bytes/token':>13}  {'gpt2':>6}  {'ratio':>6}")
    for r in results:
        other = r.reference_bytes_per_token
        beside = f"{other:>6.3f}  {r.bytes_per_token / other:>6.3f}" if other else f"{'-':>6}  {'-':>6}"
        print(f"{r.text:<{width}}  {r.bytes:>9,}  {r.tokens:>9,}  {r.bytes_per_token:>13.3f}  {beside}")


@dataclass(frozen=True, kw_only=True)
class FetchFlags:
    from_: Path | None = None
    """Folder with vocab.bpe and encoder.json, as OpenAI published them; default: download them."""
    json: bool = False
    """Print one JSON object on standard output."""


def fetch_gpt2(flags: FetchFlags) -> None:
    """Download GPT-2's two tables, or copy them, into tiktoken's cache ($TIKTOKEN_CACHE_DIR); checks their hashes."""
    from danalab.data.tokenizers.gpt2 import Gpt2Tokenizer, install_tables, tables_folder

    if flags.from_ is None:
        Gpt2Tokenizer.from_cache()
    folder = install_tables(flags.from_ or tables_folder())
    if flags.json:
        print(json.dumps({"cache": str(folder)}))
    else:
        print(f"GPT-2's tables are in {folder}")


SUBVERBS = {"train": (TrainFlags, train), "eval": (EvalFlags, evaluate), "fetch-gpt2": (FetchFlags, fetch_gpt2)}

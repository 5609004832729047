"""The hub corpora of the optimizer-benchmark literature: a row each, or a small class where documents must be joined.

Sizes are approximate; `danalab data prepare NAME --dry-run` asks the hub. Where an address in the literature's scripts
is dead, or a script is no longer supported, a mirror of the same corpus is read.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from danalab.data.sources.hub import HubSource

_ODC_BY = "ODC-By 1.0"
_OF_EACH_PART = "of each part: Common Crawl terms, ODC-By, GitHub MIT/BSD/Apache, arXiv terms, CC-BY-SA"


def _corpus(
    name: str, repo: str, licence: str, download_gb: float | None, train: tuple[str, ...], **more: Any
) -> type[HubSource]:
    """The source `name`, with these class attributes of `HubSource`."""
    settings = {"name": name, "repo": repo, "licence": licence, "download_gb": download_gb, "train": train}
    return type(name, (HubSource,), {**settings, **more})


class WikiText(HubSource):
    """WikiText-103, raw: 28,475 good and featured articles of Wikipedia, each one document.

    The rows are lines. An article starts at a first-level heading; both files are one part, because an article may
    start in one and end in the other.
    """

    name = "wikitext"
    licence = "CC-BY-SA 3.0, GFDL"
    repo = "Salesforce/wikitext"
    train = ("wikitext-103-raw-v1/train-*.parquet",)
    validation = ("wikitext-103-raw-v1/validation-*.parquet",)
    download_gb = 0.32
    folders = ("wikitext",)

    def parts(self, side: str) -> int | None:
        return 1 if self.files(side) else None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        rows = (row for file in self.files(side) for row in self._documents(file))
        return itertools.islice(articles(rows), skip, None)

    def part_bytes(self, side: str) -> list[int]:
        return [sum(super().part_bytes(side))]


CORPORA: tuple[type[HubSource], ...] = (
    # Samples of English web pages, by the number of GPT-2 tokens; -edu: those that a classifier rated educational.
    _corpus(
        "fineweb-10bt", "HuggingFaceFW/fineweb", _ODC_BY, 28, ("sample/10BT/*.parquet",),
        val_fraction=0.0001, folders=("fineweb-10BT",),
    ),
    _corpus(
        "fineweb-100bt", "HuggingFaceFW/fineweb", _ODC_BY, 277, ("sample/100BT/*.parquet",),
        val_documents=1470,  # the literature's scripts validate on the first 1,470 rows, too
        folders=("fineweb-100BT",),
    ),
    _corpus(
        "fineweb-edu", "HuggingFaceFW/fineweb-edu", _ODC_BY, 290, ("sample/100BT/*.parquet",),
        val_fraction=0.0001, folders=("fineweb-edu-100BT",),
    ),
    _corpus(
        "c4", "allenai/c4", _ODC_BY, 327, ("en/c4-train.*.json.gz",),
        validation=("en/c4-validation.*.json.gz",), folders=("c4",),
    ),
    # Web pages that Reddit users recommended up to 2020: 17 million documents, 66 GB of text.
    _corpus(
        "openwebtext2", "vietgpt/the_pile_openwebtext2", "none given: copyrights of the pages", 40,
        ("data/train-*.parquet",), val_fraction=0.0005, folders=("openwebtext2",),
    ),
    # A billion tokens of the seven parts of RedPajama 1T.
    _corpus(
        "redpajama", "togethercomputer/RedPajama-Data-1T-Sample", _OF_EACH_PART, 5, ("*_sample.jsonl",),
        val_fraction=0.0005, folders=("redpajama1Tsample",),
    ),
    # Common Crawl documents in five languages, the head and middle of their quality.
    _corpus(
        "redpajama-v2", "togethercomputer/RedPajama-Data-V2", "Common Crawl terms of use", None,
        ("sample/documents/*/*/*_head.json.gz", "sample/documents/*/*/*_middle.json.gz"),
        field="raw_content", val_fraction=0.0005, folders=("redpajamaV2sample",),
    ),
    # Six billion tokens of the deduplicated RedPajama.
    _corpus(
        "slimpajama", "DKYoon/SlimPajama-6B", _OF_EACH_PART, 14, ("data/train-*.parquet",),
        validation=("data/validation-*.parquet",), folders=("slimpajama6B",),
    ),
    WikiText,
    # LaTeX sources of papers, 29 billion tokens, as Proof-Pile-2 holds them.
    _corpus(
        "arxiv", "EleutherAI/proof-pile-2", "of each paper: arXiv terms", 30, ("arxiv/train/*.jsonl.zst",),
        validation=("arxiv/validation/*.jsonl.zst",), folders=("arxiv",),
    ),
    # A million characters, 40,000 lines, one token per character.
    _corpus(
        "shakespeare-char", "karpathy/tiny_shakespeare", "public domain", 0.001, ("default/train/*.parquet",),
        validation=("default/validation/*.parquet",), revision="refs/convert/parquet", default_tokenizer="characters",
    ),
)  # fmt: skip
ALIASES = {
    "fineweb-10bt": ("fineweb",),
    "fineweb-100bt": ("fineweb-100",),
    "fineweb-edu": ("finewebedu",),
    "redpajama-v2": ("redpajamav2",),
}
"""Names in the literature's scripts."""


def articles(rows: Iterable[str]) -> Iterator[str]:
    """Join lines of WikiText to articles, each starting at a heading ` = Title = `; lossless."""
    lines: list[str] = []
    for row in rows:
        if lines and re.fullmatch(r" = [^=\s].* = \n?", row) and not row.endswith("= = \n"):
            yield "".join(lines)
            lines = []
        lines.append(row)
    if lines:
        yield "".join(lines)

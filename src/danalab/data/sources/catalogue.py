"""The hub corpora of the optimizer-benchmark literature, one small class each.

Sizes are approximate; `danalab data prepare NAME --dry-run` asks the hub. Where an address in the literature's scripts
is dead, or a script is no longer supported, a mirror of the same corpus is read.
"""

import re
from collections.abc import Iterable, Iterator

from danalab.data.sources.hub import HubSource


class FineWeb10BT(HubSource):
    """10 billion GPT-2 tokens of English web pages, drawn at random from FineWeb."""

    name = "fineweb-10bt"
    licence = "ODC-By 1.0"
    repo = "HuggingFaceFW/fineweb"
    train = ("sample/10BT/*.parquet",)
    download_gb = 28
    val_fraction = 0.0001
    folders = ("fineweb-10BT",)


class FineWeb100BT(HubSource):
    """100 billion GPT-2 tokens of English web pages, drawn at random from FineWeb."""

    name = "fineweb-100bt"
    licence = "ODC-By 1.0"
    repo = "HuggingFaceFW/fineweb"
    train = ("sample/100BT/*.parquet",)
    download_gb = 277
    val_documents = 1470  # the literature's scripts validate on the first 1,470 rows, too
    folders = ("fineweb-100BT",)


class FineWebEdu(HubSource):
    """100 billion GPT-2 tokens of web pages that a classifier found educational."""

    name = "fineweb-edu"
    licence = "ODC-By 1.0"
    repo = "HuggingFaceFW/fineweb-edu"
    train = ("sample/100BT/*.parquet",)
    download_gb = 290
    val_fraction = 0.0001
    folders = ("fineweb-edu-100BT",)


class C4(HubSource):
    """The Colossal Clean Crawled Corpus, English, with its own validation files."""

    name = "c4"
    licence = "ODC-By 1.0"
    repo = "allenai/c4"
    train = ("en/c4-train.*.json.gz",)
    validation = ("en/c4-validation.*.json.gz",)
    download_gb = 327
    folders = ("c4",)


class OpenWebText2(HubSource):
    """Web pages that Reddit users recommended up to 2020: 17 million documents, 66 GB of text."""

    name = "openwebtext2"
    licence = "none given: copyrights of the pages"
    repo = "vietgpt/the_pile_openwebtext2"
    train = ("data/train-*.parquet",)
    download_gb = 40
    val_fraction = 0.0005
    folders = ("openwebtext2",)


class RedPajama(HubSource):
    """A billion tokens drawn from the seven parts of RedPajama 1T."""

    name = "redpajama"
    licence = "of each part: Common Crawl terms, ODC-By, GitHub MIT/BSD/Apache, arXiv terms, CC-BY-SA"
    repo = "togethercomputer/RedPajama-Data-1T-Sample"
    train = ("*_sample.jsonl",)
    download_gb = 5
    val_fraction = 0.0005
    folders = ("redpajama1Tsample",)


class RedPajamaV2(HubSource):
    """Common Crawl documents in five languages, the head and middle of their quality; text in `raw_content`."""

    name = "redpajama-v2"
    licence = "Common Crawl terms of use"
    repo = "togethercomputer/RedPajama-Data-V2"
    train = ("sample/documents/*/*/*_head.json.gz", "sample/documents/*/*/*_middle.json.gz")
    field = "raw_content"
    download_gb = None
    val_fraction = 0.0005
    folders = ("redpajamaV2sample",)


class SlimPajama(HubSource):
    """Six billion tokens of SlimPajama, the deduplicated RedPajama; it has its own validation file."""

    name = "slimpajama"
    licence = "of each part: Common Crawl terms, ODC-By, GitHub MIT/BSD/Apache, arXiv terms, CC-BY-SA"
    repo = "DKYoon/SlimPajama-6B"
    train = ("data/train-*.parquet",)
    validation = ("data/validation-*.parquet",)
    download_gb = 14
    folders = ("slimpajama6B",)


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
        for count, article in enumerate(articles(rows)):
            if count >= skip:
                yield article

    def part_bytes(self, side: str) -> list[int]:
        return [sum(super().part_bytes(side))]


class ArXiv(HubSource):
    """LaTeX sources of arXiv papers, 29 billion tokens, as Proof-Pile-2 holds them; with its own validation files."""

    name = "arxiv"
    licence = "of each paper: arXiv terms"
    repo = "EleutherAI/proof-pile-2"
    train = ("arxiv/train/*.jsonl.zst",)
    validation = ("arxiv/validation/*.jsonl.zst",)
    download_gb = 30
    folders = ("arxiv",)


class ShakespeareChar(HubSource):
    """A million characters of Shakespeare, 40,000 lines, one token per character."""

    name = "shakespeare-char"
    licence = "public domain"
    repo = "karpathy/tiny_shakespeare"
    revision = "refs/convert/parquet"
    train = ("default/train/*.parquet",)
    validation = ("default/validation/*.parquet",)
    download_gb = 0.001
    default_tokenizer = "characters"


CORPORA: tuple[type[HubSource], ...] = (
    FineWeb10BT,
    FineWeb100BT,
    FineWebEdu,
    C4,
    OpenWebText2,
    RedPajama,
    RedPajamaV2,
    SlimPajama,
    WikiText,
    ArXiv,
    ShakespeareChar,
)
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

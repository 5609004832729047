"""Corpora of the Hugging Face hub: files of a dataset repository, fetched from there or read from a local copy.

    HubSource      documents from the files that match its patterns
    CORPORA        the corpora of the optimizer-benchmark literature: a row each, or a small class

Files (.parquet, .jsonl, .json.gz, .jsonl.zst) are fetched one by one, as they are needed, into the hub's own cache
(`$HF_HOME`); a repository's Python script is never run. Reading is pinned to a commit. Where an address in the
literature's scripts is dead, or a script is no longer supported, a mirror of the same corpus is read.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from danalab.data.sources.base import TRAIN, VAL, Source
from danalab.data.sources.text import read_documents
from danalab.errors import UserError, first_line, import_extra

_TRIES, _PAUSE_SECONDS = 6, 2.0
_REFUSALS = {
    "GatedRepoError": "gated: accept its terms on the hub's page, then run: hf auth login",
    **dict.fromkeys(
        ("RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"),
        "not on the hub (or private: hf auth login)",
    ),
    "LocalEntryNotFoundError": "the hub cannot be reached",
}
"""Errors of the hub's library that asking again does not mend, and what they mean."""
_HTTP_CLIENTS = {"httpx", "httpx2", "httpcore", "requests"}  # of versions of the hub's library


class HubSource(Source):
    """A corpus of the hub."""

    repo: ClassVar[str]
    """OWNER/NAME of its dataset repository."""
    revision: ClassVar[str] = "main"
    train: ClassVar[tuple[str, ...]]
    """Patterns of the training files."""
    validation: ClassVar[tuple[str, ...]] = ()
    """Patterns of the corpus's own validation files."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Names in the literature's scripts."""
    field: ClassVar[str] = "text"
    """Column or field that holds the text."""
    default_tokenizer = "gpt2"

    def __init__(self, copy: Path | None = None):
        """`copy`: a local folder with the repository's files, or with OWNER/NAME; by default the hub is used."""
        self._copy = copy / self.repo if copy and (copy / self.repo).is_dir() else copy
        self._commit: str | None = None

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> HubSource:
        if val_inputs or len(inputs) > 1:
            raise UserError(
                f"'{cls.name}' takes one --input, a folder of {cls.repo}'s files, and no --val-input"
            )
        return cls(Path(inputs[0]) if inputs else None)

    def download(self, folder: Path) -> None:
        """Fetch the corpus's files into a folder of the repository's layout."""
        commit = self.pin({})["commit"]
        self._ask(
            lambda hub: hub.snapshot_download(
                self.repo,
                repo_type="dataset",
                revision=commit,
                allow_patterns=[*self.files[TRAIN], *self.files[VAL]],
                local_dir=folder,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        )

    def pin(self, origin: dict[str, Any]) -> dict[str, Any]:
        if self._copy is not None:
            return {"repository": self.repo}
        endpoint = os.environ.get("HF_ENDPOINT")
        self._commit = origin.get("commit") or self._commit
        if self._commit is None:
            self._commit = self._ask(
                lambda hub: hub.HfApi(endpoint).dataset_info(self.repo, revision=self.revision).sha
            )
        return {"repository": self.repo, "commit": self._commit}

    @cached_property
    def files(self) -> dict[str, list[str]]:
        """Side -> paths of its files in the repository, in reading order."""
        return {TRAIN: self._find(self.train), VAL: self._find(self.validation) if self.validation else []}

    def _find(self, patterns: Sequence[str]) -> list[str]:
        copy, commit, endpoint = self._copy, self.pin({}).get("commit"), os.environ.get("HF_ENDPOINT")
        if copy is not None:
            found = [path.relative_to(copy).as_posix() for pattern in patterns for path in copy.glob(pattern)]
        else:
            root = f"datasets/{self.repo}@{commit}/"
            listed = self._ask(
                lambda hub: [
                    path
                    for pattern in patterns
                    for path in hub.HfFileSystem(endpoint=endpoint, skip_instance_cache=True).glob(
                        root + pattern
                    )
                ]
            )
            found = [path.removeprefix(root) for path in listed]
        if not found:
            where = copy or f"hf://datasets/{self.repo}"
            raise UserError(f"{where}: no file matches {', '.join(patterns)}; has the repository changed?")
        return sorted(found)

    def _local(self, path: str) -> Path:
        """A file of the repository on this machine, fetched if it is not."""
        if self._copy is not None:
            return self._copy / path
        settings = {"revision": self.pin({})["commit"], "endpoint": os.environ.get("HF_ENDPOINT")}
        return Path(
            self._ask(lambda hub: hub.hf_hub_download(self.repo, path, repo_type="dataset", **settings))
        )

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        """The hub's answer, asked again after a lost connection; errors of its library in one line."""
        hub = import_extra("huggingface_hub", "reading from the hub")
        attempt = 0
        while True:
            try:
                return request(hub)
            except Exception as error:
                kind, attempt = type(error).__name__, attempt + 1
                if not (isinstance(error, OSError) or type(error).__module__.split(".")[0] in _HTTP_CLIENTS):
                    raise
                if attempt == _TRIES or kind in _REFUSALS:
                    reason = f"{_REFUSALS.get(kind, 'the hub cannot be reached')} ({first_line(error)})"
                    raise UserError(
                        f"hf://datasets/{self.repo}: {reason}; give a local copy with --input FOLDER, or run it again "
                        "later to resume"
                    ) from error
                time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))

    def parts(self, side: str) -> int | None:
        return len(self.files[side]) or None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        return read_documents(self._local(self.files[side][number]), self.field, skip)

    def size_bytes(self) -> int | None:
        return None  # the files are compressed

    def identity(self) -> str:
        lines = [self.repo, self.revision, self.field, *self.train, *self.validation]
        if self._copy is not None:
            for side in (TRAIN, VAL):
                for path in self.files[side]:
                    status = (self._copy / path).stat()
                    lines.append(f"{side} {path} {status.st_size} {status.st_mtime_ns}")
        return "\n".join(lines)


_ODC_BY = "ODC-By 1.0"
_OF_EACH_PART = "of each part: Common Crawl terms, ODC-By, GitHub MIT/BSD/Apache, arXiv terms, CC-BY-SA"


def _corpus(name: str, repo: str, licence: str, train: tuple[str, ...], **more: Any) -> type[HubSource]:
    """The source `name`, with these class attributes of `HubSource`."""
    settings = {"name": name, "repo": repo, "licence": licence, "train": train}
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
    folders = ("wikitext",)

    def parts(self, side: str) -> int | None:
        return 1

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        rows = (row for path in self.files[side] for row in read_documents(self._local(path)))
        return itertools.islice(articles(rows), skip, None)


CORPORA: tuple[type[HubSource], ...] = (
    # Samples of English web pages, by the number of GPT-2 tokens; -edu: those that a classifier rated educational.
    _corpus(
        "fineweb-10bt",
        "HuggingFaceFW/fineweb",
        _ODC_BY,
        ("sample/10BT/*.parquet",),
        val_fraction=0.0001,
        folders=("fineweb-10BT",),
        aliases=("fineweb",),
    ),
    _corpus(
        "fineweb-100bt",
        "HuggingFaceFW/fineweb",
        _ODC_BY,
        ("sample/100BT/*.parquet",),
        val_fraction=0.00001,  # about 1,470 documents, as many as in the literature's scripts
        folders=("fineweb-100BT",),
        aliases=("fineweb-100",),
    ),
    _corpus(
        "fineweb-edu",
        "HuggingFaceFW/fineweb-edu",
        _ODC_BY,
        ("sample/100BT/*.parquet",),
        val_fraction=0.0001,
        folders=("fineweb-edu-100BT",),
        aliases=("finewebedu",),
    ),
    _corpus(
        "c4",
        "allenai/c4",
        _ODC_BY,
        ("en/c4-train.*.json.gz",),
        validation=("en/c4-validation.*.json.gz",),
        folders=("c4",),
    ),
    # Web pages that Reddit users recommended up to 2020: 17 million documents, 66 GB of text.
    _corpus(
        "openwebtext2",
        "vietgpt/the_pile_openwebtext2",
        "none given: copyrights of the pages",
        ("data/train-*.parquet",),
        val_fraction=0.0005,
        folders=("openwebtext2",),
    ),
    # A billion tokens of the seven parts of RedPajama 1T.
    _corpus(
        "redpajama",
        "togethercomputer/RedPajama-Data-1T-Sample",
        _OF_EACH_PART,
        ("*_sample.jsonl",),
        val_fraction=0.0005,
        folders=("redpajama1Tsample",),
    ),
    # Common Crawl documents in five languages, the head and middle of their quality.
    _corpus(
        "redpajama-v2",
        "togethercomputer/RedPajama-Data-V2",
        "Common Crawl terms of use",
        ("sample/documents/*/*/*_head.json.gz", "sample/documents/*/*/*_middle.json.gz"),
        field="raw_content",
        val_fraction=0.0005,
        folders=("redpajamaV2sample",),
        aliases=("redpajamav2",),
    ),
    # Six billion tokens of the deduplicated RedPajama.
    _corpus(
        "slimpajama",
        "DKYoon/SlimPajama-6B",
        _OF_EACH_PART,
        ("data/train-*.parquet",),
        validation=("data/validation-*.parquet",),
        folders=("slimpajama6B",),
    ),
    WikiText,
    # LaTeX sources of papers, 29 billion tokens, as Proof-Pile-2 holds them.
    _corpus(
        "arxiv",
        "EleutherAI/proof-pile-2",
        "of each paper: arXiv terms",
        ("arxiv/train/*.jsonl.zst",),
        validation=("arxiv/validation/*.jsonl.zst",),
        folders=("arxiv",),
    ),
    # A million characters, 40,000 lines, one token per character.
    _corpus(
        "shakespeare-char",
        "karpathy/tiny_shakespeare",
        "public domain",
        ("default/train/*.parquet",),
        validation=("default/validation/*.parquet",),
        revision="refs/convert/parquet",
        default_tokenizer="characters",
    ),
)


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

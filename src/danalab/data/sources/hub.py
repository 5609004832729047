"""Corpora of the Hugging Face hub: files of a dataset repository, read straight from there or from a local copy.

    HubFolder      the files of one repository: on the hub, or in a folder of the same layout
    HubSource      documents from the files that match its patterns
    CORPORA        the corpora of the optimizer-benchmark literature: a row each, or a small class

Files (.parquet, .jsonl, .json.gz, .jsonl.zst) are read directly; a repository's Python script is never run. Reading
is pinned to a commit; after a lost connection it resumes at the document where it broke. Sizes of corpora are
approximate; `danalab data prepare NAME --dry-run` asks the hub. Where an address in the literature's scripts is dead,
or a script is no longer supported, a mirror of the same corpus is read.
"""

from __future__ import annotations

import fnmatch
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from danalab.data.sources.base import TRAIN, VAL, DownloadPlan, Source, walk
from danalab.data.sources.text import File, read_documents
from danalab.errors import UserError, first_line, import_extra
from danalab.files import walk_files

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BLOCK = 8 << 20  # read from a remote file at a time [bytes]
_TRIES, _PAUSE_SECONDS = 6, 2.0
_HTTP_CLIENTS = {"httpx", "httpx2", "httpcore", "requests"}
_log = logging.getLogger(__name__)


class HubSource(Source):
    """A corpus of the hub."""

    revision: ClassVar[str] = "main"
    train: ClassVar[tuple[str, ...]]
    """Patterns of the training files."""
    validation: ClassVar[tuple[str, ...]] = ()
    """Patterns of the corpus's own validation files."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Names in the literature's scripts."""
    field: ClassVar[str] = "text"
    """Column or field that holds the text."""
    download_gb: ClassVar[float | None]
    """Approximate size of the download [GB]; None if unknown."""
    default_tokenizer = "gpt2"

    def __init__(self, copy: Path | None = None):
        """`copy`: a local folder with the repository's files; by default the hub is used."""
        self._copy = copy
        self._commit: str | None = None

    @classmethod
    def build(cls, inputs: Sequence[str | Path], val_inputs: Sequence[str | Path]) -> HubSource:
        if val_inputs or len(inputs) > 1:
            raise UserError(
                f"'{cls.name}' takes one --input, a folder of {cls.repo}'s files, and no --val-input"
            )
        return cls(Path(inputs[0]) if inputs else None)

    def plan_download(self) -> DownloadPlan:
        try:
            commit = self.pin({}).get("commit")
            files = [*self.files(TRAIN), *self.files(VAL)]
        except UserError as error:
            recorded = round(self.download_gb * 1e9) if self.download_gb else None
            return DownloadPlan(self.name, self.repo, self.licence, None, None, recorded, False, str(error))
        total = sum(file.size for file in files)
        return DownloadPlan(self.name, self.repo, self.licence, commit, len(files), total, True)

    def download(self, folder: str | Path, workers: int = 8) -> Path:
        """Fetch the corpus's files, by `workers` parallel downloads, into a folder of the repository's layout."""
        hub, commit = _hub_library(), self.pin({})["commit"]
        with explain_hub_errors(f"hf://datasets/{self.repo}"):
            hub.snapshot_download(
                self.repo,
                repo_type="dataset",
                revision=commit,
                allow_patterns=[file.path for file in (*self.files(TRAIN), *self.files(VAL))],
                local_dir=folder,
                max_workers=workers,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        return Path(folder)

    @cached_property
    def folder(self) -> HubFolder:
        """The local copy, or the hub at the pinned commit."""
        if self._copy is not None:
            return local_copy(self._copy, self.repo)
        if self._commit is None:
            self._commit = commit_of(self.repo, self.revision)
        return on_hub(self.repo, self._commit)

    def pin(self, origin: dict[str, Any]) -> dict[str, Any]:
        if self._copy is None:
            self._commit = origin.get("commit")
            _ = self.folder
        return {"repository": self.repo, **({"commit": self._commit} if self._commit else {})}

    @cached_property
    def _files(self) -> dict[str, list[HubFile]]:
        files = {TRAIN: self.folder.files(self.train)}
        if self.validation:
            files[VAL] = self.folder.files(self.validation)
        return files

    def files(self, side: str) -> list[HubFile]:
        """The files of a side in reading order."""
        return self._files.get(side, [])

    def parts(self, side: str) -> int | None:
        return len(self.files(side)) or None

    def iter_part(self, side: str, number: int, skip: int = 0) -> Iterator[str]:
        return self._documents(self.files(side)[number], skip)

    def _documents(self, file: HubFile, skip: int = 0) -> Iterator[str]:
        readable = self.folder.file(file.path)
        if not self.folder.remote:
            return read_documents(readable, self.field, skip)
        return read_persistently(lambda done: read_documents(readable, self.field, done), readable.name, skip)

    def iter_documents(self) -> Iterator[str]:
        return (text for _, text in walk(self, TRAIN, None))

    def iter_validation(self) -> Iterator[str] | None:
        return (text for _, text in walk(self, VAL, None)) if self.validation else None

    def part_bytes(self, side: str) -> list[int]:
        return [file.size for file in self.files(side)]

    def size_bytes(self) -> int | None:
        return None  # the files are compressed

    def identity(self) -> str:
        lines = [self.repo, self.revision, self.field, *self.train, *self.validation]
        if self._copy is not None:
            for side in (TRAIN, VAL):
                lines += [
                    f"{side} {f.path} {f.size} {self.folder.modified(f.path)}" for f in self.files(side)
                ]
        return "\n".join(lines)


class HubFolder:
    """The files of one dataset repository, on the hub or in a local folder of the same layout."""

    def __init__(self, filesystem: AbstractFileSystem, root: str, name: str, *, remote: bool):
        """Use `on_hub` or `local_copy`. `name` is used in messages; connections to a `remote` one may break."""
        self._filesystem, self._root, self.name, self.remote = filesystem, root, name, remote

    def files(self, patterns: Sequence[str]) -> list[HubFile]:
        """The files that match one of the patterns, sorted by path."""
        matching: dict[str, HubFile] = {}
        for pattern in patterns:
            fixed = itertools.takewhile(lambda folder: not set(folder) & set("*?["), pattern.split("/")[:-1])
            begin = "/".join([self._root, *fixed])
            if self.remote:
                with explain_hub_errors(self.name):
                    listed = cast("dict[str, dict[str, Any]]", self._filesystem.find(begin, detail=True))
            else:  # links are followed, as in the hub's own cache
                listed = {str(path): _local_facts(path) for path in walk_files(Path(begin))}
            for full, facts in listed.items():
                path = full.removeprefix(self._root).lstrip("/")
                if fnmatch.fnmatchcase(path, pattern):
                    if facts["type"] == "other":
                        raise UserError(f"{full}: not a regular file")
                    matching[path] = HubFile(path, facts["size"])
        if not matching:
            raise UserError(
                f"{self.name}: no file matches {', '.join(patterns)}; has the repository changed?"
            )
        return [matching[path] for path in sorted(matching)]

    def file(self, path: str) -> File:
        """A file that is opened on demand."""
        full = f"{self._root}/{path}"
        settings = {"block_size": _BLOCK} if self.remote else {}
        name = f"{self.name}/{path}"
        return File(name, lambda: cast("BinaryIO", self._filesystem.open(full, "rb", **settings)))

    def modified(self, path: str) -> int:
        """Modification time of a local file [ns]."""
        return Path(self._root, path).stat().st_mtime_ns


def _local_facts(path: Path) -> dict[str, Any]:
    return {
        "size": path.stat().st_size if path.exists() else 0,
        "type": "file" if path.is_file() else "other",
    }


@dataclass(frozen=True)
class HubFile:
    """A file of a repository."""

    path: str
    """Below the repository's root."""
    size: int
    """[bytes]"""


def on_hub(repo: str, revision: str) -> HubFolder:
    """A dataset repository at a revision (a branch, or better a commit)."""
    filesystem = _hub_library().HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT"))
    quoted = revision.replace("/", "%2F")
    return HubFolder(filesystem, f"datasets/{repo}@{quoted}", f"hf://datasets/{repo}", remote=True)


def local_copy(folder: Path, repo: str) -> HubFolder:
    """The repository's files in a local folder, or in OWNER/NAME below it."""
    from fsspec.implementations.local import LocalFileSystem

    if not folder.is_dir():
        raise UserError(f"--input {folder}: no such folder; it must hold the files of {repo}")
    root = folder / repo if (folder / repo).is_dir() else folder
    return HubFolder(LocalFileSystem(), str(root.resolve()), str(root), remote=False)


def commit_of(repo: str, revision: str) -> str:
    """The current commit of a revision of a repository."""
    api = _hub_library().HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    with explain_hub_errors(f"hf://datasets/{repo}"):
        return str(api.dataset_info(repo, revision=revision).sha)


def _hub_library() -> Any:
    return import_extra("huggingface_hub", "reading from the hub")


def read_persistently(
    read: Callable[[int], Iterator[str]],
    name: str,
    skip: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Documents of `read(skip)`; after a lost connection it is read again from the document where it broke."""
    done, failures = skip, 0
    while True:
        try:
            for text in read(done):
                done, failures = done + 1, 0
                yield text
            return
        except Exception as error:
            if not _is_network_error(error):
                raise
            failures += 1
            if failures == _TRIES:
                raise UserError(
                    f"{name}: {first_line(error)} ({_TRIES} attempts, after document {done}); run it again to resume"
                ) from error
            _log.info("%s: %s after document %d; trying again", name, first_line(error), done)
            sleep(_PAUSE_SECONDS * 2 ** (failures - 1))


@contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Convert the hub library's errors to one line that says what to do; `name` is the repository."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        kind = type(error).__name__
        if kind == "GatedRepoError":
            reason = "gated: accept its terms on the hub's page, then run: hf auth login"
        elif kind in {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
            reason = "not on the hub (or private: hf auth login)"
        elif isinstance(error, FileNotFoundError):
            reason = f"no such file or folder in it: {first_line(error)}"
        elif _is_network_error(error):
            reason = f"the hub cannot be reached ({kind}); give a local copy with --input FOLDER, or try again later"
        else:
            raise
        raise UserError(f"{name}: {reason}") from error


def _is_network_error(error: BaseException) -> bool:
    """Whether a connection failed; the hub library's HTTP client depends on its version."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _HTTP_CLIENTS


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
        "fineweb-10bt",
        "HuggingFaceFW/fineweb",
        _ODC_BY,
        28,
        ("sample/10BT/*.parquet",),
        val_fraction=0.0001,
        folders=("fineweb-10BT",),
        aliases=("fineweb",),
    ),
    _corpus(
        "fineweb-100bt",
        "HuggingFaceFW/fineweb",
        _ODC_BY,
        277,
        ("sample/100BT/*.parquet",),
        val_documents=1470,  # the literature's scripts validate on the first 1,470 rows, too
        folders=("fineweb-100BT",),
        aliases=("fineweb-100",),
    ),
    _corpus(
        "fineweb-edu",
        "HuggingFaceFW/fineweb-edu",
        _ODC_BY,
        290,
        ("sample/100BT/*.parquet",),
        val_fraction=0.0001,
        folders=("fineweb-edu-100BT",),
        aliases=("finewebedu",),
    ),
    _corpus(
        "c4",
        "allenai/c4",
        _ODC_BY,
        327,
        ("en/c4-train.*.json.gz",),
        validation=("en/c4-validation.*.json.gz",),
        folders=("c4",),
    ),
    # Web pages that Reddit users recommended up to 2020: 17 million documents, 66 GB of text.
    _corpus(
        "openwebtext2",
        "vietgpt/the_pile_openwebtext2",
        "none given: copyrights of the pages",
        40,
        ("data/train-*.parquet",),
        val_fraction=0.0005,
        folders=("openwebtext2",),
    ),
    # A billion tokens of the seven parts of RedPajama 1T.
    _corpus(
        "redpajama",
        "togethercomputer/RedPajama-Data-1T-Sample",
        _OF_EACH_PART,
        5,
        ("*_sample.jsonl",),
        val_fraction=0.0005,
        folders=("redpajama1Tsample",),
    ),
    # Common Crawl documents in five languages, the head and middle of their quality.
    _corpus(
        "redpajama-v2",
        "togethercomputer/RedPajama-Data-V2",
        "Common Crawl terms of use",
        None,
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
        14,
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
        30,
        ("arxiv/train/*.jsonl.zst",),
        validation=("arxiv/validation/*.jsonl.zst",),
        folders=("arxiv",),
    ),
    # A million characters, 40,000 lines, one token per character.
    _corpus(
        "shakespeare-char",
        "karpathy/tiny_shakespeare",
        "public domain",
        0.001,
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

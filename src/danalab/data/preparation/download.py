"""A corpus of the hub fetched whole into a folder, and that folder checked against what the hub said of its files.

The folder has the layout of the repository, so `danalab data prepare NAME --input FOLDER` reads it. `download.json`
holds each file's size and hash; `danalab data verify FOLDER` compares them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from danalab.data.formats.layouts import Finding, Layout
from danalab.data.formats.shards import reading
from danalab.data.sources import SOURCES, TRAIN, VAL, HubSource
from danalab.data.sources.hub import HubFile, explain_hub_errors
from danalab.errors import UserError
from danalab.files import read_json, write_json

NAME = "download.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class DownloadPlan:
    """What there is to fetch of a corpus."""

    source: str
    repository: str
    licence: str
    commit: str | None
    """None where the hub could not be asked."""
    files: int | None
    bytes: int | None
    """To fetch in all; where the hub could not be asked, what is recorded here; None when nothing is."""
    checked: bool
    """Whether the hub was asked just now."""
    reason: str = ""
    """Why it was not."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def hub_source(name: str) -> type[HubSource]:
    """The corpus of the hub called `name`.

    Raises:
        UserError: unknown, or a source that is not of the hub.
    """
    source = SOURCES.get(name)
    if not issubclass(source, HubSource):
        hub = [each for each in SOURCES if issubclass(SOURCES.get(each), HubSource)]
        raise UserError(f"the source '{source.name}' is not of the hub: nothing to fetch; of the hub: {', '.join(hub)}")
    return source


def plan_download(name: str, inputs: tuple[str, ...] = ()) -> DownloadPlan:
    """What would be fetched for a corpus; from recorded facts where the hub cannot be reached, and says so.

    Raises:
        UserError: not a corpus of the hub.
    """
    kind = hub_source(name)
    source = kind.build(inputs, ())
    try:
        commit = source.pin({}).get("commit")
        files = [*source.files(TRAIN), *source.files(VAL)]
    except UserError as error:
        recorded = round(kind.download_gb * 1e9) if kind.download_gb else None
        return DownloadPlan(kind.name, kind.repo, kind.licence, None, None, recorded, False, str(error))
    return DownloadPlan(kind.name, kind.repo, kind.licence, commit, len(files), sum(file.size for file in files), True)


def download(name: str, folder: str | Path, workers: int = 8) -> Path:
    """Fetch the files of a corpus; what is there already is not fetched again. Returns the folder.

    Args:
        name: a corpus of the hub.
        folder: gets the repository's layout.
        workers: files fetched at a time.

    Raises:
        UserError: not a corpus of the hub, the hub cannot be reached, or a file arrived with another size.
        MissingExtra: `huggingface_hub` is not installed.
    """
    folder = Path(folder)
    source = hub_source(name).build((), ())
    commit = source.pin({})["commit"]
    files = [*source.files(TRAIN), *source.files(VAL)]

    from huggingface_hub import snapshot_download

    with explain_hub_errors(f"hf://datasets/{source.repo}"):
        snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=commit,
            allow_patterns=[file.path for file in files],
            local_dir=folder,
            max_workers=workers,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    for file in files:
        size = (folder / file.path).stat().st_size
        if size != file.size:
            raise UserError(f"{folder / file.path}: {size} bytes, the hub says {file.size}; delete it and run it again")
    listed = [asdict(file) for file in files]
    write_json(folder / NAME, {"source": source.name, "repository": source.repo, "commit": commit, "files": listed})
    return folder


def _matches(folder: Path) -> bool:
    return (folder / NAME).is_file()


def _read(folder: Path) -> tuple[str, list[HubFile]]:
    content = read_json(folder / NAME)
    try:
        files = [HubFile(**file) for file in content["files"]]
        if not all(isinstance(f.path, str) and type(f.size) is int for f in files):
            raise TypeError("a file without path or size")
        return str(content["source"]), files
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / NAME}: malformed: {error}; run danalab data download again") from error


def _not_tokens(folder: Path) -> Any:
    name, _ = _read(folder)
    raise UserError(f"{folder}: text of the hub, not tokens yet; run danalab data prepare {name} --input {folder}")


def _verify(folder: Path) -> Iterator[Finding]:
    _, files = _read(folder)
    for file in files:
        path = folder / file.path
        try:
            with reading(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != file.size:
                    yield Finding(str(path), f"{size} bytes, the hub says {file.size}")
                    continue
                kind, _, expected = (file.digest or "").partition(":")
                digest = hashlib.sha1(b"blob %d\0" % size) if kind == "git" else hashlib.sha256()
                while block := stream.read(_BLOCK):
                    digest.update(block)
        except UserError as error:
            yield Finding(str(path), str(error).removeprefix(f"{path}: "))
            continue
        if expected and digest.hexdigest() != expected:
            yield Finding(str(path), "content differs from what the hub has")


LAYOUT = Layout("download", _matches, _not_tokens, lambda folder, _: _not_tokens(folder), _not_tokens, _verify)

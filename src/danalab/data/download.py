"""Download of a whole corpus of the hub into a folder, and the check of that folder against the hub's hashes.

The folder has the layout of the repository, so `danalab data prepare NAME --input FOLDER` reads it. `download.json`
holds each file's size and hash; `danalab data validate FOLDER` compares them.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from danalab.data.formats.shards import reading
from danalab.data.layout import DataLayout, Finding
from danalab.data.sources import TRAIN, VAL, hub_source
from danalab.errors import UserError
from danalab.files import read_state, write_json
from danalab.data.sources.hub import HubFile, HubSource, explain_hub_errors

NAME = "download.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class DownloadRecord:
    """The content of `download.json`."""

    source: str
    repository: str
    commit: str
    files: list[HubFile]


def download(name: str, folder: str | Path, workers: int = 8) -> Path:
    """Fetch the missing files of a corpus of the hub, by `workers` parallel downloads; returns their folder."""
    if not 1 <= workers <= 64:
        raise UserError(f"--workers is {workers}; it must be between 1 and 64")
    folder = Path(folder)
    source = hub_source(name).build((), ())
    assert isinstance(source, HubSource)
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
            raise UserError(f"{folder / file.path}: {size} bytes; the hub says {file.size}: delete it and run it again")
    write_json(folder / NAME, asdict(DownloadRecord(source.name, source.repo, commit, files)))
    return folder


def _not_tokens(folder: Path) -> Any:
    name = shlex.quote(read_state(DownloadRecord, folder / NAME).source)
    raise UserError(f"{folder}: text, not tokens; run danalab data prepare {name} --input {shlex.quote(str(folder))}")


def _verify(folder: Path) -> Iterator[Finding]:
    for file in read_state(DownloadRecord, folder / NAME).files:
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
            yield Finding(str(path), "content differs from the hub's")


LAYOUT = DataLayout(
    "download", lambda folder: (folder / NAME).is_file(), _not_tokens, lambda folder, _: _not_tokens(folder), _verify
)

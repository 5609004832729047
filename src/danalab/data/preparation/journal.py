"""The durable state of an unfinished preparation: resuming neither loses nor repeats a document."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from danalab.data.formats.manifest import checksum_of
from danalab.data.formats.shards import Count, ShardEntry
from danalab.data.sources.base import Place
from danalab.errors import UserError
from danalab.files import read_json, validated, write_json

NAME = "journal.json"


@dataclass
class SplitState:
    """One split: its finished shards, and the flushed part of the open one."""

    finished: list[ShardEntry] = field(default_factory=list)
    tokens: Count = 0
    documents: Count = 0
    text_bytes: Count = 0

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass
class Journal:
    """The state at one document; resuming discards what was written after it."""

    request: str
    origin: dict[str, Any] = field(default_factory=dict)
    """The result of `Source.pin`, passed to it again on resume."""
    place: Place | None = None
    """The place where reading resumes: the documents before it are in the shards."""
    splits: dict[str, SplitState] = field(default_factory=dict)

    __pydantic_config__ = ConfigDict(extra="forbid")

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically, with a checksum."""
        content = asdict(self)
        write_json(folder / NAME, {**content, "checksum": checksum_of(content)})

    @classmethod
    def read(cls, folder: Path) -> "Journal | None":
        """The journal of an unfinished preparation in the folder; None when there is none."""
        file = folder / NAME
        if not file.is_file():
            return None
        content = read_json(file)
        if not isinstance(content, dict) or content.pop("checksum", None) != checksum_of(content):
            raise UserError(f"{file}: damaged (checksum); delete the folder and prepare it again")
        return validated(cls, content, file)

"""What an unfinished preparation has made durable: after a kill it goes on without losing or repeating a document."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from danalab.data.formats.manifest import checksum_of
from danalab.data.formats.shards import ShardEntry
from danalab.data.sources.base import Place
from danalab.errors import UserError
from danalab.files import read_json, write_json

NAME = "journal.json"


@dataclass
class SplitState:
    """One split: its finished shards, and how much of the open one has been flushed."""

    finished: list[ShardEntry] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0


@dataclass
class Journal:
    """The state at some document; what was written later is cut off when the work goes on."""

    request: str
    origin: dict[str, Any] = field(default_factory=dict)
    """What `Source.pin` wants to be told again."""
    place: Place | None = None
    """Where reading goes on: the documents before it are in the shards."""
    splits: dict[str, SplitState] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write into the folder, atomically, with a checksum of its own."""
        content = asdict(self)
        write_json(folder / NAME, {**content, "checksum": checksum_of(content)})

    @classmethod
    def read(cls, folder: Path) -> Journal | None:
        """The journal of an unfinished preparation in the folder; None when there is none.

        Raises:
            UserError: malformed.
        """
        file = folder / NAME
        if not file.is_file():
            return None
        content = read_json(file)
        try:
            if content.pop("checksum") != checksum_of(content):
                raise UserError(f"{file}: damaged (checksum); delete the folder and prepare it again")
            for split, state in content["splits"].items():
                state["finished"] = [ShardEntry(**entry) for entry in state["finished"]]
                content["splits"][split] = SplitState(**state)
            content["place"] = Place(*content["place"]) if content["place"] else None
            return cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: malformed ({error}); delete the folder and prepare it again") from error

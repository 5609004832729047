"""The log of prompts and answers, written only where it is asked for."""

import json
import os
import time
from pathlib import Path
from typing import Any


class ConversationLog:
    """A file with a JSON object a line, readable by its owner only.

    JSON escapes line breaks and control characters, so text of a conversation cannot look like another line.
    """

    def __init__(self, path: Path):
        """Raises: OSError: the file cannot be written."""
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="ascii")

    def write(self, endpoint: str, request: dict[str, Any], answers: list[str]) -> None:
        """Append one request and the texts of its answers."""
        row = {"time": round(time.time(), 3), "endpoint": endpoint, "request": request, "answers": answers}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

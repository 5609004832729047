"""Notes each module of danalab that a process imports, in the file $DOCS_CHECK_USED.

Python imports this at its start where the folder is on PYTHONPATH; so do the processes that a command starts.
"""

import os
import sys

_FILE = os.environ.get("DOCS_CHECK_USED")


class _Recorder:
    """Asked first for each module that is not yet imported; finds none."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "danalab":
            note = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(note, f"{name}\n".encode())  # in one write, so that processes do not mix their lines
            os.close(note)


if _FILE:
    sys.meta_path.insert(0, _Recorder)

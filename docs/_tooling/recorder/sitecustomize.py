"""Notes each file of the repository $DOCS_CHECK_ROOT that a process opens to read, in the file $DOCS_CHECK_USED.

Python imports this at its start where the folder is on PYTHONPATH; so do the processes that a command starts.
A compiled module counts as its source.
"""

import os
import sys
from importlib.util import source_from_cache

_FILE, _ROOT = os.environ.get("DOCS_CHECK_USED"), os.environ.get("DOCS_CHECK_ROOT", "")
_FOLDERS = ("bench", "docs", "examples", "scripts", "src", "tests")
_noted = set()


def _note(event: str, arguments: tuple) -> None:
    """An audit hook; it must not fail, whatever the path."""
    if event != "open" or not isinstance(arguments[0], (str, bytes)) or set(arguments[1] or "") & set("wax"):
        return
    try:
        path = os.path.realpath(os.fsdecode(arguments[0]))
        name = os.path.relpath(source_from_cache(path) if path.endswith(".pyc") else path, _ROOT)
    except (OSError, ValueError, NotImplementedError):
        return
    if name in _noted or name.split(os.sep)[0] not in _FOLDERS or ".egg-info" in name:
        return
    _noted.add(name)
    note = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(note, f"{name}\n".encode())  # in one write, so that processes do not mix their lines
    os.close(note)


if _FILE:
    sys.addaudithook(_note)

"""Source archives of others' packages, whose tests ours must pass: fetched by name when a slow test asks for one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


def sdist(name: str, version: str, folder: Path) -> Path:
    """The unpacked archive in `folder`, where other processes may unpack it as well; skips where pip gets none."""
    place = folder / f"{name}-{version}"
    if place.is_dir():
        return place
    with TemporaryDirectory(dir=folder) as new:
        words = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", new, f"{name}=={version}"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *words], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"pip gets no source archive of {name}: {done.stderr.strip().splitlines()[-1]}")
        (archive,) = Path(new).glob("*.tar.gz")
        shutil.unpack_archive(archive, new)
        (inside,) = (path for path in Path(new).iterdir() if path.is_dir())
        with contextlib.suppress(OSError):  # another process was earlier
            inside.rename(place)
    return place

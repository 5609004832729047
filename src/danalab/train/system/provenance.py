"""Versions of the software that made a run."""

import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from danalab import __version__


def versions() -> dict[str, str | None]:
    """Versions of the software that the numbers of a run depend on."""
    return {
        "danalab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the source tree, with "-dirty" where it has changes; None for an installed package."""
    file = Path(__file__).resolve()
    here = file.parents[2]  # the package
    try:
        _git(here, "ls-files", "--error-unmatch", str(file))  # fails where a repository only contains an installed copy
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

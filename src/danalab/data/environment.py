"""What the environment decides: the folders of data sets and caches, and the number of cores."""

import os
from pathlib import Path


def datasets_folder() -> Path:
    """The default folder of data sets: `$DATASETS_DIR`, else ./datasets."""
    return Path(os.environ.get("DATASETS_DIR") or "datasets")


def cache_folder(name: str) -> Path:
    """A folder for files that can be made again: `$XDG_CACHE_HOME/danalab/NAME`, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "danalab" / name


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Other libraries' tests are slow ones. The fast suite does not even import them: torch's helpers for tests freeze
torch's global flags, which trainers set.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if "not slow" in config.option.markexpr else None

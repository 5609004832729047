"""Files that survive a crash, and what is said where they cannot be written."""

from __future__ import annotations

import errno
import os

import pytest

from danalab.files import write_atomically


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "config.json"
    write_atomically(file, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*config\.json"):
        write_atomically(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert file.read_text() == "old"

"""Names in tables, and somebody's own code by its address."""

from __future__ import annotations

import hashlib

import pytest

from danalab.errors import UserError
from danalab.tables import key_of, load, lookup, source_digest

TABLE = {"dana-star": 1, "heavy": "danalab.errors:nearest"}


def test_case_underscores_and_hyphens_do_not_matter():
    assert key_of(TABLE, "Dana_Star", "optimizer") == "dana-star"
    assert lookup(TABLE, "DanaStar", "optimizer") == 1


def test_text_in_a_table_is_imported_when_it_is_looked_up():
    assert lookup(TABLE, "heavy", "function").__name__ == "nearest"


def test_an_own_object_is_loaded_from_a_file_once(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("class Mine:\n    pass\n")
    found = lookup(TABLE, f"{file}:Mine", "optimizer", own=True)
    assert found is load(f"{file}:Mine")
    assert source_digest(f"{file}:Mine") == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dana-sta", "unknown optimizer 'dana-sta' (did you mean 'dana-star'?); known: dana-star, heavy"),
        ("heavyweight", "(did you mean 'heavy'?)"),
        ("no_module:X", "no module 'no_module'"),
        ("danalab.errors:nearst", "there is no 'nearst' in it (did you mean 'nearest'?)"),
        ("absent.py:X", "absent.py: no such Python file"),
        ("broken.py:X", "broken.py: ZeroDivisionError as it was imported: division by zero"),
    ],
)
def test_what_is_not_there_is_refused(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UserError) as error:
        lookup(TABLE, name, "optimizer", own=True)
    assert words in str(error.value)

"""Files that survive a crash, and what is said where they cannot be written."""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from danalab.errors import UserError
from danalab.files import (
    cache_folder,
    environment_path,
    expand_home,
    naming,
    read_json,
    read_yaml,
    to_yaml,
    validated,
    write_atomically,
)


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


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("deep.json", "[" * 100_000, "nested too deeply"),
        ("cut.json", '{"a": 1', "column 8"),
        ("deep.yaml", "[" * 20_000, "recursion|not valid YAML"),
        ("call.yaml", "a: !!python/object/apply:os.system [touch pwned]", "python/object"),
        ("tag.yaml", "a: !function f", "!function"),
        ("cut.yaml", "a: [1", "not valid YAML"),
        ("null\0.json", None, "null (byte|character)"),  # Python 3.13 says character
        ("half\ud800.json", None, "surrogate"),
        ("pipe.json", None, "not a regular file"),
    ],
)
def test_files_that_would_crash_or_hang_a_reader_are_refused_in_one_line(tmp_path, name, content, reason):
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    elif name == "pipe.json":
        os.mkfifo(file)
    with pytest.raises(UserError, match=reason) as caught:
        (read_yaml if name.endswith("yaml") else read_json)(file)
    assert "\n" not in str(caught.value)


def test_a_user_without_a_home_has_a_cache(monkeypatch, tmp_path):
    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder("scans") == Path(tempfile.gettempdir()) / f"danalab-{os.getuid()}" / "scans"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "danalab"


def test_an_error_without_a_name_gets_that_of_the_open_file(tmp_path):
    with pytest.raises(OSError, match="No space left on device: 'the shard'"), naming("the shard"):
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
    with pytest.raises(FileNotFoundError, match="absent"), naming("the shard"):
        (tmp_path / "absent").read_bytes()
    with pytest.raises(BrokenPipeError), naming("the pipe"):
        raise OSError(errno.EPIPE, "Broken pipe")


def test_aliases_that_expand_to_little_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &x {lr: 1}\nb: {<<: *x}")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"lr": 1}, "b": {"lr": 1}}


def test_content_that_does_not_fit_is_named_with_its_place():
    @dataclass
    class Facts:
        tokens: int
        shares: list[float]

    assert validated(Facts, {"tokens": 3, "shares": [1, 0.5]}, "facts.json") == Facts(3, [1.0, 0.5])
    with pytest.raises(
        UserError, match=r"^facts\.json: malformed: shares\.1: Input should be a valid number"
    ):
        validated(Facts, {"tokens": 3, "shares": [1, "x"]}, "facts.json")


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E3", 1e3), ("-.5e1", -5.0), ("1e", "1e"), ("12", 12)]
)
def test_numbers_with_an_exponent_are_numbers(tmp_path, text, value):
    (tmp_path / "a.yaml").write_text(text)
    got = read_yaml(tmp_path / "a.yaml")
    assert (got, type(got)) == (value, type(value))
    (tmp_path / "a.yaml").write_text(to_yaml({"a": text, "b": value}))
    assert read_yaml(tmp_path / "a.yaml") == {"a": text, "b": value}


def test_tags_of_another_program_are_passed_over_where_its_files_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("task: mine\ndoc_to_text: !function utils.text")
    assert read_yaml(tmp_path / "a.yaml", own_tags=True) == {"task": "mine", "doc_to_text": None}


@pytest.mark.parametrize(
    ("given", "expanded"),
    [
        ("~", "/home/me"), ("~/a b/c", "/home/me/a b/c"), ("$HOME/x", "/home/me/x"), ("${SCRATCH}/x", "/scratch/x"),
        ("./~", "./~"), ("./$HOME", "./$HOME"), ("a~", "a~"), ("a/~/b", "a/~/b"), ("a$HOME", "a$HOME"),
        ("/x", "/x"),
    ],
)  # fmt: skip
def test_a_leading_tilde_or_variable_is_expanded_as_in_a_shell(monkeypatch, given, expanded):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("SOMEWHERE", given)
    assert expand_home(given) == expanded
    assert environment_path("SOMEWHERE") == Path(expanded)


def test_a_home_or_variable_that_is_unknown_makes_no_folder_of_its_name(monkeypatch):
    with pytest.raises(UserError, match=r"~nobody_here is the home of nobody.*; \./~nobody_here is a file"):
        expand_home("~nobody_here/x")
    with pytest.raises(UserError, match="a path is empty"):
        expand_home("")
    monkeypatch.setenv("SOMEWHERE", "")
    assert environment_path("SOMEWHERE") is None
    monkeypatch.setenv("SOMEWHERE", "$ABSENT_VARIABLE/x")
    with pytest.raises(UserError, match=r"^SOMEWHERE=\$ABSENT_VARIABLE/x in the environment: .*not set"):
        environment_path("SOMEWHERE")

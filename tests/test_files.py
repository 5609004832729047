"""Files that survive a crash, and what is said where they cannot be written."""

from __future__ import annotations

import errno
import math
import os
import pwd
import re
import tempfile
import time
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
        ("long.json", "1" * 5000, "thousands of digits"),
        ("cut.json", '{"a": 1', "column 8"),
        ("cut lines.json", '{"a":\n1', "line 2, column 2"),
        ("deep.yaml", "[" * 20_000, "nested too deeply"),
        ("long.yaml", "a: " + "1" * 5000, "thousands of digits"),
        ("self.yaml", "a: &a [*a]", "contains itself"),
        (
            "bomb.yaml",
            "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64)),
            "written out",
        ),
        ("call.yaml", "a: !!python/object/apply:os.system [touch pwned]", "python/object"),
        ("null\0.json", None, "null byte"),
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


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder("scans") == Path(tempfile.gettempdir()) / f"danalab-{os.getuid()}" / "scans"
    monkeypatch.setenv("HOME", "/home/a b")
    assert cache_folder() == Path("/home/a b/.cache/danalab")


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
    with pytest.raises(UserError, match=r"^facts\.json: malformed: shares\.1: Input should be a valid number"):
        validated(Facts, {"tokens": 3, "shares": [1, "x"]}, "facts.json")


@pytest.mark.parametrize("value", ["!!bool foo", "!!timestamp foo", '!!int ""', '!!float ""', "!!binary é"])
def test_a_value_that_does_not_fit_its_tag_is_refused_in_one_line(tmp_path, value):
    file = tmp_path / "config.yaml"
    file.write_text(f"a: {value}")
    with pytest.raises(UserError, match="not valid YAML") as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_many_keys_are_read_in_time_that_is_linear_in_their_number(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"k{n}: 1\n" for n in range(8_000)) + "k5: 2\n")
    begun = time.process_time()
    with pytest.raises(UserError, match="k5 is given 2 times"):
        read_yaml(file)
    assert time.process_time() - begun < 8  # 8,000^2 comparisons more take longer than the parsing


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("+12", 12), ("-0", 0), ("0x1F", 31), ("0o17", 15), ("1e-3", 1e-3), ("1E3", 1e3), (".5", 0.5),
        ("1.", 1.0), ("-.inf", -math.inf), ("true", True), ("FALSE", False), ("~", None), ("Null", None), ("", None),
        ("!!str 12", "12"), ("!!int 12", 12), ("!!float 1", 1.0), ("{<<: {a: 1, b: 1}, b: 2}", {"a": 1, "b": 2}),
        *((word, word) for word in ("yes", "No", "on", "off", "y", "1:30", "190:20:30", "1_000", "0b1", "0o8",
                                    "2024-01-01", "12e", "=", "<<", "0x", "1.2.3", "1,000", "tRUE")),
    ],
)  # fmt: skip
def test_plain_words_are_those_of_the_core_schema_of_yaml_1_2(tmp_path, text, value):
    (tmp_path / "a.yaml").write_text(text)
    got = read_yaml(tmp_path / "a.yaml")
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("012", "012 is 12 in YAML 1.2 and octal in 1.1; write 12"),
        ("-007", "write -7, or '-007' for text"),
        ("[!!int 0100]", "write 100"),
        ("!!int 1_000", "'1_000' is no int"),
        ("!!bool yes", "'yes' is no bool"),
        ("!!null x", "'x' is no null"),
        ("{1: a, 0x1: b}", "1 is given 2 times"),
        ("{a: {x: 1, 'x': 2}}", "x is given 2 times"),
        ("{<<: {a: 1}, <<: {a: 2}}", "<< is given 2 times"),
        ("!!set {a, b}", "set"),
        ("!!timestamp 2024-01-01", "timestamp"),
        ("!!python/name:os.system ''", "python/name"),
        ("!function f", "!function"),
        ("{[a]: 1}", "unhashable"),
    ],
)
def test_what_readers_of_yaml_take_in_two_ways_is_refused(tmp_path, text, reason):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        read_yaml(tmp_path / "a.yaml")
    assert "\n" not in str(caught.value)


def test_tags_of_another_program_are_passed_over_where_its_files_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("task: mine\ndoc_to_text: !function utils.text")
    assert read_yaml(tmp_path / "a.yaml", own_tags=True) == {"task": "mine", "doc_to_text": None}


def test_what_is_written_as_yaml_is_read_back_by_readers_of_both_versions(tmp_path):
    import yaml

    words = [
        "012",
        "1e-3",
        "yes",
        "off",
        "0o14",
        "1:30",
        "2024-01-01",
        ".5",
        "~",
        "",
        "<<",
        "=",
        "null",
        "1_000",
        "a: b",
        "é",
    ]
    values = {
        "words": words,
        **dict.fromkeys(words, 1),
        "numbers": [0, -3, 1e-5, 1e22, 0.1],
        "rest": [True, None, {}, [[]]],
    }
    (tmp_path / "a.yaml").write_text(to_yaml(values), encoding="utf-8")
    assert read_yaml(tmp_path / "a.yaml") == values == yaml.safe_load((tmp_path / "a.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("given", "expanded"),
    [
        ("~", "/home/me"), ("~/a b/c", "/home/me/a b/c"), ("$HOME/x", "/home/me/x"), ("${SCRATCH}/x", "/scratch/x"),
        ("./~", "./~"), ("./$HOME", "./$HOME"), ("a~", "a~"), ("a/~/b", "a/~/b"), ("a$HOME", "a$HOME"),
        ("", ""), ("/x", "/x"),
    ],
)  # fmt: skip
def test_a_leading_tilde_or_variable_is_expanded_as_in_a_shell(monkeypatch, given, expanded):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("SOMEWHERE", given)
    assert expand_home(given) == expanded
    assert environment_path("SOMEWHERE") == (Path(expanded) if given else None)


def test_a_home_or_variable_that_is_unknown_makes_no_folder_of_its_name(monkeypatch):
    with pytest.raises(UserError, match=r"~nobody_here is the home of nobody.*; \./~nobody_here is a file"):
        expand_home("~nobody_here/x")
    monkeypatch.setenv("SOMEWHERE", "$ABSENT_VARIABLE/x")
    with pytest.raises(UserError, match=r"^SOMEWHERE=\$ABSENT_VARIABLE/x in the environment: .*not set"):
        environment_path("SOMEWHERE")

"""The keys of docs/json.md are those that the verbs print."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from danalab.cli.app import flag_types, main
from danalab.judge.judge import PairedVerdict
from text_data import prepare_lines

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (`[^|]*`) \| (.*) \|$", PAGE, re.MULTILINE))
TINY = "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 8 --batch-size 2 --iterations 2 --no-tune-malloc"
COMMANDS = {
    "train": f"train --data data --run-dir run {TINY}",
    "plan": "plan --heads 2",
    "plan --params": "plan --params 1000000 --tokens-per-step 4096 --iterations 100",
    "compare": "compare run",
    "optim list": "optim list --opt adana",
    "optim schedules": "optim schedules --steps 20",
    "optim export": "optim export adana",
    "new optimizer": "new optimizer mine",
    "eval": "eval run",
    "generate": "generate run --max-tokens 2",
    "data info": "data info data",
    "data validate": "data validate data",
}


def row(verb: str) -> tuple[set[str], dict[str, set[str]]]:
    """(keys of a verb, key of a list -> the keys of its items)."""
    (text,) = [text for names, text in ROWS.items() if verb in re.findall(r"`([^`]*)`", names)]
    keys, inner = set(), {}
    for part in re.split(r"; (?:with|several|a ladder)|, with", text)[0].split("; "):
        first, colon, below = part.partition(": ")
        keys |= set(re.findall(r"`([^`]*)`", first))
        if colon:
            inner[first.strip("`")] = set(re.findall(r"`([^`]*)`", below))
    return keys, inner


def test_every_verb_with_json_has_a_row():
    named = {word.partition(" --")[0] for names in ROWS for word in re.findall(r"`([^`]*)`", names)}
    verbs = {
        verb for verb, flags in flag_types().items() if flags and "json" in {field.name for field in fields(flags)}
    }
    small = {"data split", "data download", "data train-tokenizer", "data eval-tokenizer", "data fetch-gpt2"}
    whole = {verb for verb in verbs if verb.split()[0] in ("theory", "bench", "ladder", "report")}
    assert verbs - named - small - whole == set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    prepare_lines(folder, 60, 10, words=["one", "two", "three"], per_line=9).rename(folder / "data")
    return folder


def test_the_keys_of_the_page_are_printed(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for verb, command in COMMANDS.items():
        assert main([*command.split(), "--json"]) == 0, command
        printed = json.loads(capsys.readouterr().out)
        keys, inner = row(verb)
        assert keys - {"from"} <= printed.keys(), verb
        for name, below in inner.items():
            assert below <= printed[name][0].keys(), verb


def test_the_keys_of_a_verdict_are_its_fields():
    assert row("judge")[1]["verdicts"] == {*(field.name for field in fields(PairedVerdict)), "sentence"}

"""The help of every verb, which must come at once."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

from danalab.cli.app import COMMANDS, GROUPS, main
from danalab.cli.training import ending

ASK = """
import contextlib, io, json, sys
from danalab.cli.app import COMMANDS, commands_of, main

with contextlib.redirect_stdout(io.StringIO()) as out:
    main(["--help"])
shown = {"": [out.getvalue(), []]}
for verb in COMMANDS:
    for words in [[verb], *([verb, name] for name in commands_of(verb) if name)]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main([*words, "--help"])
        heavy = sys.modules.keys() & {"torch", "jax", "pydantic", "matplotlib", "transformers", "datasets"}
        shown[" ".join(words)] = [out.getvalue(), list(heavy)]
print(json.dumps(shown))
"""


def test_help_imports_no_large_library():
    answer = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    shown = json.loads(answer.stdout)
    text, _ = shown.pop("")
    assert "talk to a model in the terminal" in text
    assert set(COMMANDS) <= shown.keys()
    for words, (text, heavy) in shown.items():
        assert f"usage: danalab {words}" in text
        assert not heavy, words


def test_help_of_train_shows_twenty_flags_first_and_all_by_section(capsys):
    shown = {}
    for flag in ("--help", "--help-all"):
        with contextlib.suppress(SystemExit):
            main(["train", flag])
        shown[flag] = capsys.readouterr().out
    assert len(re.findall(r"^  --", shown["--help"], re.MULTILINE)) == 20
    assert "danalab train --help-all" in shown["--help"]
    for title in ("model", "data", "optimizer", "run"):
        assert f"\n{title}:\n" in shown["--help-all"]
    for text in shown.values():
        assert "None" not in text
        assert "default by the fitted law" in text


def test_words_of_other_programs_name_our_verbs(capsys):
    assert main(["sample"]) == 2
    assert "unknown command 'sample' (did you mean 'generate'?)" in capsys.readouterr().err


def test_every_flag_has_help(capsys):
    for verb in COMMANDS:
        with contextlib.suppress(SystemExit):
            main([verb, "--help-all"])
        for line in re.findall(r"^  (--\S+.*)", capsys.readouterr().out, re.MULTILINE):
            assert " " in line, (verb, line)


def test_the_first_screen_has_eighteen_verbs_and_help_all_the_others(capsys):
    for words in ([], ["--help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert len(re.findall(r"^  (\w+)  ", shown, re.MULTILINE)) == 18
        assert f"More, with --help-all: {', '.join(GROUPS['more'])}." in shown
        assert "To begin: danalab demo" in shown
        assert len(shown.splitlines()) <= 40
    assert main(["--help-all"]) == 0
    assert set(re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.MULTILINE)) == set(COMMANDS)


def test_help_of_serve_has_six_entries(capsys):
    with contextlib.suppress(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    flags = re.findall(r"^  (\S+)", shown, re.MULTILINE)
    assert flags == ["RUN", "--name", "--host", "--port", "--api-key", "--from"]
    assert "danalab serve --help-all" in shown


def test_debug_after_two_hyphens_belongs_to_the_other_command(monkeypatch, capsys):
    monkeypatch.chdir("/")
    assert main(["slurm", "--dry-run", "--", "--debug"]) == 2
    assert "unknown flag --debug" in capsys.readouterr().err


def test_help_of_sweep_begins_with_the_grid_and_ends_with_the_cluster(capsys):
    with contextlib.suppress(SystemExit):
        main(["sweep", "--help"])
    flags = re.findall(r"^  --([\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert flags[0] == "grid"
    assert flags.index("dry-run") < flags.index("json") < flags.index("account")


def test_inner_verbs_stand_in_one_column(capsys):
    main(["data"])
    names = re.findall(r"^  (\S+ +)", capsys.readouterr().out, re.MULTILINE)
    assert len(set(map(len, names))) == 1


def test_the_last_line_of_a_run_says_what_its_validation_loss_was_measured_on():
    run = {
        "status": "finished",
        "step": 3,
        "iterations": 3,
        "val/loss": 4.9,
        "val/bpb": 1.9,
        "train/loss": 4.7,
    }
    first, last = ending(run, Path("runs/a")).splitlines()
    assert first == "finished at step 3 of 3, train loss 4.7000, val loss 4.9000 (1.9000 bits/byte)"
    assert last == "results in runs/a; try danalab generate --run runs/a, or danalab compare runs/a ANOTHER"
    whole = ending({**run, "val/share": 1.0}, Path("a"))
    assert "val loss 4.9000 (1.9000 bits/byte, over the whole validation split)" in whole
    part = ending({**run, "val/share": 0.25}, Path("a"))
    assert "over 25.0% of the validation split; --final-eval-batches 0: all" in part
    stopped = ending({"status": "interrupted", "step": 1, "iterations": 3}, Path("a"))
    assert stopped == "interrupted at step 1 of 3\nresults in a; the same command continues it"


def test_a_flag_that_is_like_none_of_the_verb_gets_no_suggestion(capsys):
    assert main(["demo", "--foo"]) == 2
    assert "did you mean" not in capsys.readouterr().err

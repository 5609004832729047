"""The demonstration from corpus to page, small; and what can be done with the runs that it leaves."""

from __future__ import annotations

import json
import shlex
import sys
from functools import cached_property
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.data.sources.text import StdlibSource
from danalab.experiments import demo as demo_module
from danalab.experiments import runs
from danalab.experiments.demo import next_steps, run_demo, verdict
from danalab.experiments.settings import DemoConfig
from danalab.train.run.open import open_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A demonstration of four steps with one trial for each optimizer, on a sixteenth of the corpus."""
    patch = pytest.MonkeyPatch()
    whole, part = StdlibSource.files.func, cached_property(lambda source: whole(source)[::16])
    part.__set_name__(StdlibSource, "files")
    patch.setattr(StdlibSource, "files", part)
    patch.setattr(demo_module, "TRIALS", {"adamw": (4e-3,), "adana": (2e-3,)})
    patch.setattr(demo_module, "EVAL_BATCHES", 1)
    config = DemoConfig(out=tmp_path_factory.mktemp("demo"), tokens=4 * 8 * 128, vocab_size=512, jobs=1)
    yield config, run_demo(config)
    patch.undo()


def test_the_page_holds_both_optimizers_the_pictures_and_samples(made):
    config, demo = made
    page = Path(demo["page"]).read_text()
    assert "adamw" in page
    assert "adana" in page
    assert "nats/token below" in page.splitlines()[0], "the answer comes first"
    assert "def read_" in page
    drawn = {
        f"{name}{ending}" for name in ("loss-tokens", "loss-compute") for ending in (".png", "-dark.svg")
    }
    assert drawn | {"demo.json"} <= {file.name for file in config.out.iterdir()}
    assert [row["opt"] for row in json.loads((config.out / "demo.json").read_text())["runs"]] == [
        "adamw",
        "adana",
    ]


def test_both_optimizers_start_from_the_same_weights_and_see_the_same_data(made):
    config, _ = made
    runs = [open_run(config.out / "runs" / name).config for name in ("adamw-lr0.004", "adana-lr0.002")]
    alike = ("seed", "data_seed", "iterations", "global_batch", "omega", "grad_clip", "scheduler")
    for name in alike:
        assert runs[0]["config"][name] == runs[1]["config"][name]


def test_it_ends_with_three_commands_that_this_shell_knows(made, monkeypatch, tmp_path):
    config, demo = made
    monkeypatch.setattr(demo_module.shutil, "which", lambda _: "/usr/bin/danalab")
    begin, *commands = next_steps(demo)
    assert begin == "Next:"
    assert [line.split()[:2] for line in commands] == [
        ["danalab", verb] for verb in ("generate", "train", "speedrun")
    ]
    assert str(config.out / "runs" / min(demo["runs"], key=lambda row: row["val_loss"])["run"]) in commands[0]
    monkeypatch.setattr(demo_module.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "activate" not in next_steps(demo)[1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    assert shlex.split(next_steps(demo)[1])[-1].endswith("/bin/activate")


def test_started_again_it_trains_nothing(made, monkeypatch):
    config, demo = made
    monkeypatch.setattr(runs, "COMMAND", ("false",))  # a run that is started fails
    monkeypatch.setattr(demo_module, "_write", lambda *_: None)  # the page is there
    assert run_demo(config) == demo


def test_the_verdict_says_who_won_whoever_it_is(made):
    _, demo = made
    adamw, adana = demo["runs"]

    assert verdict([{**adamw, "val_loss": 3.0}, {**adana, "val_loss": 3.5}])[0].startswith(
        "AdamW ends 0.5000"
    )
    assert verdict([{**adamw, "val_loss": 3.5}, {**adana, "val_loss": 3.0}])[0].startswith(
        "ADana ends 0.5000"
    )
    assert "may be noise" in verdict(demo["runs"])[1]


def test_a_run_is_sampled_with_a_seed(made, capsys):
    config, _ = made
    arguments = [
        "generate",
        "--run",
        str(config.out / "runs" / "adana-lr0.002"),
        "--prompt",
        "def ",
        "--json",
    ]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*arguments, "--seed", seed, "--max-tokens", "12"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["samples"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_that_does_not_fit_is_refused(made, capsys):
    config, _ = made
    arguments = ["generate", "--run", str(config.out / "runs" / "adana-lr0.002"), "--prompt", "word " * 200]
    assert main(arguments) == 2
    assert "seq_len 128" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "value"), [("--samples", "0"), ("--samples", "-2"), ("--seed", str(2**70))])
def test_what_no_sample_can_be_made_of_is_refused(made, capsys, flag, value):
    config, _ = made
    assert main(["generate", "--run", str(config.out / "runs" / "adana-lr0.002"), flag, value]) == 2
    assert f"{flag} {value}" in capsys.readouterr().err

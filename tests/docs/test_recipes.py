"""Every recipe of CONTRIBUTING.md works as written, on a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    "--data stdlib --tokenizer bytes --d-model 32 --n-layers 1 --n-heads 1 --seq-len 32 --batch-size 2 --iterations 4 "
    "--log-interval 1 --eval-batches 1 --ckpt-interval 0 --lr 1e-3"
)


def recipes() -> dict[str, list[tuple[str, str | None, str]]]:
    """Title -> (file, line after which the text goes; None: a new file, text)."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Recipes")[1]
    pattern = re.compile(r'```(?:python|text) title="(.*?)"(?: after="(.*?)")?\n(.*?)```', re.DOTALL)
    parts = page.split("\n### ")[1:]
    return {part.splitlines()[0]: [(m[1], m[2], m[3]) for m in pattern.finditer(part)] for part in parts}


@pytest.fixture
def danalab(tmp_path):
    """Perform recipes on a copy of the package; returns a function that runs the copy's command line."""

    def perform(*titles: str):
        copy = tmp_path / "src"
        for package in ("danalab", "danalab_annexes"):  # compiled files too, which spares their making
            shutil.copytree(ROOT / "src" / package, copy / package)
        for name, after, text in [piece for title in titles for piece in recipes()[title]]:
            file = copy / Path(name).relative_to("src")
            if after is None:
                assert not file.exists()
                file.write_text(text)
            elif after:
                head, found, tail = file.read_text().partition(after + "\n")
                assert found, f"{name} has no line {after!r}"
                file.write_text(head + found + text + tail)
            else:
                file.write_text(file.read_text() + text)

        def run(command: str = "", *, code: str | None = None) -> str:
            done = subprocess.run(
                [sys.executable, *(["-m", "danalab", *command.split()] if code is None else ["-c", code])],
                env={**os.environ, "PYTHONPATH": str(copy), "DATASETS_DIR": str(tmp_path / "data")},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return run

    return perform


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_there_are_six_recipes_of_at_most_two_pieces():
    assert [len(pieces) for pieces in recipes().values()] == [1, 1, 2, 2, 2, 1]


def test_a_new_elementwise_optimizer_steps_and_its_setting_has_default_range_and_help(danalab):
    code = """
import torch
from danalab.cli.app import main
from danalab.errors import UserError
from danalab.optim import LogRms, build_optimizer, optimizer_spec
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
build_optimizer("log-rms", [p], lr=0.1, delta=4.0).step()
print(bool((p < 1).all()), LogRms([p], rms_floor=1e-3).defaults["rms_floor"])
for build in (lambda: LogRms([p], rms_floor=0.0), lambda: LogRms([{"params": [p], "rms_floor": -1.0}])):
    try:
        build()
    except UserError as error:
        print(error)
print(optimizer_spec("log-rms").settings["rms_floor"].help)
main(["plan", "--heads", "3", "--opt", "log-rms", "--rms-floor", "0"])
"""
    assert danalab("A new elementwise optimizer")(code=code).splitlines() == [
        "True 0.001",
        "LogRms: rms_floor is 0.0; it must be finite and positive",
        "LogRms: rms_floor is -1.0; it must be finite and positive",
        "least root of the second moment",
    ]


@pytest.mark.slow
def test_a_new_elementwise_optimizer_trains(danalab, tmp_path):
    run = danalab("A new elementwise optimizer")
    assert "RMSprop with a logarithmic-time average" in run("optim list --opt log-rms")
    run(f"train --opt log-rms --delta 4 --rms-floor 1e-6 {TINY} --run-dir run")
    assert len([row for row in rows(tmp_path / "run") if "train/loss" in row]) == 4


@pytest.mark.slow
def test_a_new_architecture_is_planned_and_trains(danalab, tmp_path):
    run = danalab("A new architecture")
    assert json.loads(run("plan --arch narrow --heads 2 --json"))["n_layers"] == 4
    run(f"train --arch narrow {TINY} --run-dir run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_new_metric_is_in_every_row(danalab, tmp_path):
    danalab("A new metric or callback")(f"train {TINY} --run-dir run")
    norms = [row["weight_norm"] for row in rows(tmp_path / "run") if "train/loss" in row]
    assert len(norms) == 4
    assert all(norm > 0 for norm in norms)


@pytest.mark.slow
def test_a_new_data_source_is_prepared_and_trained_on(danalab, tmp_path):
    run = danalab("A new data source")
    run("data prepare numbers --tokenizer bytes --out numbers")
    run(f"train {TINY.replace('--data stdlib --tokenizer bytes', '--data numbers')} --run-dir run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_a_new_task_and_a_new_reward_are_found_by_name(danalab):
    run = danalab("A new task", "A new reward")
    code = """
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
problem = make_task("reversal:seed=1")[0][0]
assert problem.question.split("'")[1] == problem.answer[::-1]
print(Scorer()(problem, problem.answer), Scorer("overlap")(problem, "no"))
"""
    assert run(code=code) == "1.0 0.0\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_new_task_and_a_new_reward_reinforce_a_run(danalab, tmp_path):
    run = danalab("A new task", "A new reward")
    run(f"train {TINY.replace('--seq-len 32', '--seq-len 48')} --run-dir run")
    size = "--problems 2 --samples 2 --max-answer 4 --iterations 2"
    run(f"rl --run run --task reversal --reward overlap {size} --run-dir rl")
    assert [row["step"] for row in rows(tmp_path / "rl") if "rl/reward" in row] == [1, 2]
    assert '"reversal"' in run("eval rl --tasks reversal --limit 2 --max-tokens 4 --json")

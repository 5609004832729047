"""The same flags give the same record, whichever command reads them."""

import dataclasses
import shlex
from itertools import product
from pathlib import Path

import pytest

from danalab.cli import plan, slurm
from danalab.experiments.cells import expand, parse_fixed
from danalab.train.config.flags import parse
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from train.config.test_config import Words

SIZES = [
    "--arch enoki --heads 3 --data stdlib", "--arch qwen3 --heads 2 --seq-len 64 --lr-multiplier 2",
    "--arch moe --heads 2 --n-experts 4 --tokens-per-param 40", "--d-model 64 --n-layers 2 --n-heads 1 --lr 1e-3",
    "--arch resonance --size small --iterations 500",
]  # fmt: skip
OPTS = [
    "--opt adana --kappa 0.75 --omega 2 --delta 6", "--opt adamw --weight-decay 0.2 --set betas=0.8,0.95",
    "--opt dana-star-mk4 --clipsnr 1.5", "--opt muon --warmup-steps 30 --batch-size 4 --acc-steps 2",
    "--opt dana-muon --grad-clip 1 --global-batch 64", "--opt ademamix --scheduler wsd --fract-decay 0.3",
    "--opt lion --seed 3 --data-seed 5", "--opt danamuon --wd-ts-divisor 5 --z-loss 0",
]  # fmt: skip


def as_fixed(words: list[str]) -> list[str]:
    """["--lr", "1e-3", "--set", "eps=1e-9"] -> ["lr=1e-3", "eps=1e-9"], as a sweep takes them."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [value if name == "--set" else f"{name[2:]}={value}" for name, value in pairs]


def original(word: str) -> str:
    """A flag as the original code spells it."""
    return "--" + word[2:].replace("-", "_") if word.startswith("--") else word


@pytest.mark.parametrize("line", [*map(" ".join, product(SIZES, OPTS))])
def test_train_plan_sweep_slurm_and_the_originals_spelling_give_one_record(line):
    words = shlex.split(line)
    run = parse(TrainConfig, words, "danalab train")
    planned = parse(plan.Flags, words, "danalab plan")
    _, of_job = slurm._checked(words, 1)
    (cell,) = expand({}, parse_fixed(as_fixed(words)), [{}])
    readings = {
        "plan": TrainConfig(
            **{field.name: getattr(planned, field.name) for field in dataclasses.fields(run)}
        ),
        "slurm": dataclasses.replace(parse(TrainConfig, of_job, "danalab train"), name=None),
        "sweep": dataclasses.replace(cell.config(Path("x")), run_dir=None),
        "original": parse(TrainConfig, list(map(original, words)), "danalab train"),
    }
    resolved = resolve(run, Words()).as_dict()
    for reader, reading in readings.items():
        assert reading.as_dict() == run.as_dict(), reader
        assert resolve(reading, Words()).as_dict() == resolved, reader

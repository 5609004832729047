"""A base run of seconds to reinforce, and a task that an untrained model sometimes solves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from danalab.post.rl import configure
from danalab.post.settings import RlConfig, RlFlags
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from text_data import prepare_lines


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base run with a context of 48 bytes."""
    data = prepare_lines(tmp_path_factory.mktemp("text"), 60, 10)
    return train(
        TrainConfig(
            data=str(data), d_model=32, n_layers=1, n_heads=2, seq_len=48, batch_size=4, iterations=2, lr=3e-3,
            opt="adamw", run_dir=tmp_path_factory.mktemp("base") / "run", eval_batches=1,
        )
    )  # fmt: skip


@pytest.fixture(scope="session")
def low_bytes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward that half of all random answers earn: their first character is in the first half of the alphabet."""
    file = tmp_path_factory.mktemp("reward") / "low.py"
    file.write_text("def reward(problem, answer):\n    return float(answer[:1] < 'a' and len(answer) > 0)\n")
    return str(file)


@pytest.fixture
def rl(base: Path, low_bytes: str, tmp_path: Path) -> Callable[..., RlConfig]:
    """Make a configuration of a few steps; what is given wins."""

    def make(**given) -> RlConfig:
        settings = {
            "run": base, "task": ("arithmetic:max=9",), "reward": low_bytes, "problems": 4, "samples": 4,
            "max_answer": 6, "iterations": 6, "lr": 1e-2, "eval_interval": 3, "eval_problems": 4, "ckpt_interval": 2,
            "run_dir": tmp_path / "rl",
        }  # fmt: skip
        return configure(RlFlags(**{**settings, **given}))

    return make

"""A base run of seconds, and conversations to fine-tune it on."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from danalab.post.settings import MidConfig, MidFlags, SftConfig, SftFlags
from danalab.post.sft import configure
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from text_data import prepare_lines


def sums(count: int, turns: int = 3) -> list[dict]:
    """Conversations of 1 to `turns` questions."""
    draw, found = random.Random(0), []
    for _ in range(count):
        messages = []
        for _ in range(draw.randint(1, turns)):
            left, right = draw.randint(0, 9), draw.randint(0, 9)
            messages.append({"role": "user", "content": f"{left}+{right}?"})
            messages.append({"role": "assistant", "content": str(left + right)})
        found.append({"messages": messages})
    return found


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("chats") / "sums.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in sums(150)))
    return file


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_lines(tmp_path_factory.mktemp("text"), 300, 15, end=".")


@pytest.fixture(scope="session")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base run with a context of 64 bytes."""
    return train(
        TrainConfig(
            data=str(text), arch="qwen3", d_model=32, n_layers=2, n_heads=2, seq_len=64, batch_size=4, iterations=5,
            lr=4e-3, opt="adana", kappa=0.8, run_dir=tmp_path_factory.mktemp("base") / "run",
        )
    )  # fmt: skip


@pytest.fixture
def tuned(base: Path, chats: Path, tmp_path: Path) -> Callable[..., SftConfig]:
    """Make a configuration of a fine-tuning of `base` on `chats`, evaluated and saved often; what is given wins."""

    def make(**given) -> SftConfig:
        settings = {"run": base, "data": (str(chats),), "run_dir": tmp_path / "sft", **QUICK}
        return configure(SftFlags(**{**settings, **given}), SftConfig)

    return make


@pytest.fixture
def mid(base: Path, chats: Path, tmp_path: Path) -> Callable[..., MidConfig]:
    """As `tuned`, for mid-training."""

    def make(**given) -> MidConfig:
        settings = {"run": base, "data": (str(chats),), "run_dir": tmp_path / "mid", **QUICK}
        return configure(MidFlags(**{**settings, **given}), MidConfig)

    return make


QUICK = {"eval_interval": 4, "log_interval": 1, "ckpt_interval": 3}

"""One server with a random model for all tests that leave nothing behind; folders of tiny runs."""

import json
import shutil
from pathlib import Path

import pytest

from danalab.serve import ServerSettings
from danalab.train.config.train_config import TrainConfig
from danalab.train.job import train
from servers import RunningServer, ScriptedEngine, running_server, tiny_model
from text_data import prepare_lines


@pytest.fixture(scope="session")
def server():
    with running_server(tiny_model()) as running:
        yield running


@pytest.fixture(scope="module")
def scripted():
    """A server whose model calculates what it is asked, and repeats other questions."""
    model = tiny_model(2048)

    def script(question: str) -> str:
        if question.endswith("?"):
            return f"It is <|python_start|>{question[:-1]}<|python_end|>, I say."
        return question

    engine = ScriptedEngine(model, script)
    with running_server(model, ServerSettings(), engine) as server:
        yield server, engine


@pytest.fixture
def client(server: RunningServer):
    with server.client() as made:
        yield made


@pytest.fixture(scope="session")
def base_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three steps."""
    text = prepare_lines(tmp_path_factory.mktemp("text"), 300, 40, end=".")
    return train(
        TrainConfig(
            data=str(text), arch="qwen3", d_model=32, n_layers=2, n_heads=2, seq_len=128, batch_size=4, iterations=3,
            lr=1e-3, opt="adamw", run_dir=tmp_path_factory.mktemp("base") / "tiny-run", tune_malloc=False,
        )
    )  # fmt: skip


@pytest.fixture(scope="session")
def chat_run(base_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as if danalab sft had made it."""
    folder = shutil.copytree(base_run, tmp_path_factory.mktemp("chat") / "chat-run")
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "stage": "sft"}))
    return folder

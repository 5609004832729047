"""One server with a random model for all tests that leave nothing behind; folders of tiny runs."""

import json
import shutil
from pathlib import Path

import pytest

from danalab.serve.settings import ServerSettings
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from pages import ready, script
from required_tools import CHROMIUM
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
    text = prepare_lines(tmp_path_factory.mktemp("text"), 300, 15, end=".")
    return train(
        TrainConfig(
            data=str(text), arch="qwen3", d_model=32, n_layers=2, n_heads=2, seq_len=128, batch_size=4, iterations=3,
            lr=1e-3, opt="adamw", run_dir=tmp_path_factory.mktemp("base") / "tiny-run",
        )
    )  # fmt: skip


@pytest.fixture(scope="session")
def chat_run(base_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as if danalab sft had made it."""
    folder = shutil.copytree(base_run, tmp_path_factory.mktemp("chat") / "chat-run")
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "stage": "sft"}))
    return folder


@pytest.fixture(scope="session")
def browser():
    """Chromium; tests of the page are skipped without it."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def page_server():
    """A server whose model writes what `pages.script` says."""
    model = tiny_model(8192)
    with running_server(model, engine=ScriptedEngine(model, script, seconds=0.001)) as server:
        yield server


@pytest.fixture
def context(browser, request):
    """A browser without anything stored; its pages may have no error, break no policy and ask no other server."""
    made = browser.new_context(**getattr(request, "param", {}))
    made.set_default_timeout(90_000)
    faults = []

    def watch(page):
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Security Policy" in line.text else None)
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda sent: faults.append(sent.url) if _is_foreign(sent.url) else None)

    made.on("page", watch)
    yield made
    made.close()
    assert faults == []


@pytest.fixture
def page(context, page_server):
    """The page of `page_server`."""
    made = context.new_page()
    made.goto(page_server.url)
    ready(made)
    return made


def _is_foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "blob:", "data:"))

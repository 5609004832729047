"""danalab serve and danalab chat as a person starts them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from danalab.cli.app import main
from danalab.train import train
from danalab.train.config.train_config import TrainConfig
from text_data import prepare_lines

PATIENCE = 250
"""Time for a process [s], on a machine that does much else; a test has 300 s."""


def start(*words: str, **more) -> subprocess.Popen:
    command = [sys.executable, "-m", "danalab", *map(str, words)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **more)


def address(line: str) -> str:
    return re.search(r"http://[^ ,]+", line)[0]


def test_serve_says_where_it_listens_and_ends_when_it_is_told_to(base_run):
    process = start("serve", base_run, "--port", "0", "--api-key", "secret")
    try:
        line = process.stdout.readline()
        assert re.fullmatch(
            r"tiny-run at step 3, context 128 tokens: page (http://127.0.0.1:\d+), API \1/v1\n", line
        )
        assert ": a base model: conversations are plain text" in process.stdout.readline()
        url = address(line)
        headers = {"authorization": "Bearer secret"}
        body = {"prompt": "a", "max_tokens": 3}
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
        assert answer.json()["usage"]["completion_tokens"] <= 3
        assert httpx.get(f"{url}/v1/models", timeout=PATIENCE).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_sigterm_ends_long_streams_and_silent_clients_in_one_line(tmp_path):
    openai = pytest.importorskip("openai")
    text = prepare_lines(tmp_path, 5000, 200)
    size = {"arch": "qwen3", "d_model": 32, "n_layers": 2, "n_heads": 2, "seq_len": 2048}
    run = tmp_path / "long"
    train(TrainConfig(data=str(text), batch_size=1, iterations=1, opt="adamw", lr=1e-3, run_dir=run, **size))
    process = start("serve", run, "--port", "0", "--drain-seconds", "0")
    begun, ends = threading.Semaphore(0), []
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2000, "stream": True, "n": 8}
    body["logit_bias"] = {"256": -100}  # the answer does not end

    def read() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            try:
                for _ in client.chat.completions.create(model="long", **body):
                    begun.release()
            except openai.APIError as error:
                ends.append(error.code)

    try:
        url = address(process.stdout.readline())
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(100):
            assert begun.acquire(timeout=PATIENCE)
        silent = []
        content = json.dumps({**body, "logprobs": True, "top_logprobs": 20}).encode()
        for sent in (content, content[:-1]):  # one that does not read, one that does not end
            silent.append(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            head = (
                f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            silent[-1].sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}".encode() + sent)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        for reader in readers:
            reader.join(PATIENCE)
        assert ends == ["stopping"] * 3
        assert re.fullmatch(
            r"\d+ answers are not finished after 0 s; the server ends them\n", process.stderr.read()
        )
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --run (a run folder) or --from"),
        (["nowhere"], "nowhere"),
        (["RUN", "--from", "RUN"], "give either --run"),
        (["RUN", "--port", "99999"], "--port 99999: must be at most 65535"),
        (["RUN", "--host", "203.0.113.7", "--port", "0"], "--host 203.0.113.7 --port 0: "),
        (["RUN", "--api-key", " "], "--api-key: a key must be printable"),
        (["RUN", "--step", "77", "--port", "0"], "77"),
        (["RUN", "--max-batch-size", "0"], "must be at least 1"),
    ],
)
def test_serve_refuses_in_one_line(base_run, capsys, words, message):
    assert main(["serve", *[str(base_run) if word == "RUN" else word for word in words]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_library_is_named_with_its_extra(base_run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(base_run)]) == 2
    assert "danalab serve needs uvicorn: pip install 'danalab[serve]'" in capsys.readouterr().err


def test_an_error_has_no_control_characters(capsys):
    assert main(["serve", "\x1b[2Jx"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.slow
def test_chat_answers_questions_and_obeys_commands(chat_run):
    lines = "hello\n/retry\nhello\n/reset\nhello\n/nothing\n\udcff\n/help\n/exit\n"
    process = start(
        "chat", chat_run, "--max-tokens", "5", "--seed", "3", stdin=subprocess.PIPE, errors="surrogateescape"
    )
    out, error = process.communicate(lines, timeout=PATIENCE)  # with a byte that is no UTF-8
    assert process.returncode == 0
    assert "/reset   forget the conversation" in out
    assert "no command /nothing; /help lists them" in error
    assert "chat-run, context 128 tokens" in error
    assert "Traceback" not in error


def test_chat_answers_one_question_with_the_same_seed_alike(chat_run, capsys):
    answers = []
    for seed in (1, 1, 2):
        assert (
            main(["chat", str(chat_run), "--prompt", "hello", "--seed", str(seed), "--max-tokens", "9"]) == 0
        )
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_chat_refuses_a_question_that_exceeds_the_context(chat_run, capsys):
    assert main(["chat", str(chat_run), "--prompt", "x" * 200]) == 2
    assert "the model's context is 128 tokens" in capsys.readouterr().err

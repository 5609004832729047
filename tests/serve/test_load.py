"""Many clients, bad clients, and the end of a server."""

import asyncio
import gc
import json
import random
import socket
import string
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from danalab.serve import app as app_module
from danalab.serve.settings import ServerSettings
from servers import RunningServer, ScriptedEngine, running_server, tiny_model, wait_until

T = TypeVar("T")
CHAT = "/v1/chat/completions"


def question(text: str = "hi", **settings) -> dict:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **settings}


def is_idle(server: RunningServer) -> bool:
    return server.worker.open == 0 and not server.worker.engine.busy


def run_apart(coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread: a browser of an earlier test has the event loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(coroutine())).result()


async def streamed(client: httpx.AsyncClient, body: dict) -> str:
    """The text of a stream, which must be whole."""
    text, last = "", ""
    async with client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    text += "".join(
                        choice["delta"].get("content", "") for choice in json.loads(last)["choices"]
                    )
    assert last == "[DONE]"
    return text


def run_clients(server: RunningServer, n_clients: int, requests: int, seconds: float = 0.0) -> int:
    """Clients that stream one request after the other, and compare each answer with that of the same seed alone.

    Each sends at least `requests`, and goes on for `seconds`. Returns the number of answers.
    """
    seeds = range(20)
    with server.client() as alone:
        answers = [
            alone.post(CHAT, json=question(str(seed), seed=seed, max_tokens=12)).json() for seed in seeds
        ]
    expected = [answer["choices"][0]["message"]["content"] for answer in answers]
    end = time.monotonic() + seconds

    async def client(number: int) -> int:
        rng, counted = random.Random(number), 0
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False, verify=False) as made:
            while counted < requests or time.monotonic() < end:
                seed = rng.choice(seeds)
                assert await streamed(made, question(str(seed), seed=seed, max_tokens=12)) == expected[seed]
                counted += 1
        return counted

    async def all_clients() -> int:
        return sum(await asyncio.gather(*(client(number) for number in range(n_clients))))

    return run_apart(all_clients)


def test_streams_at_the_same_time_do_not_mix(server):
    assert run_clients(server, n_clients=50, requests=2) == 100
    wait_until(lambda: is_idle(server))


@pytest.mark.slow
def test_fifty_clients_for_a_minute_leave_memory_flat():
    with running_server(tiny_model(), max_batch_size=32, max_waiting=64) as server:
        run_clients(server, 50, requests=10)
        gc.collect()
        before = psutil.Process().memory_info().rss
        run_clients(server, 50, requests=2, seconds=60)
        gc.collect()
        assert psutil.Process().memory_info().rss - before < 20 << 20


def raw(server: RunningServer, body: dict, missing: int = 0) -> socket.socket:
    """A connection that has sent a request, but for its last bytes, and read nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    content = json.dumps(body).encode()
    head = [
        f"POST {CHAT} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + content[: len(content) - missing])
    return connection


class GatedEngine(ScriptedEngine):
    """Makes a step when it is let."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.gate, self.steps = threading.Semaphore(0), 0

    def step(self):
        assert self.gate.acquire(timeout=60)
        self.steps += 1
        return super().step()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot_within_a_step(stream):
    model = tiny_model()
    engine = GatedEngine(model, lambda _: "x" * 400)
    with running_server(model, engine=engine) as server:
        connection = raw(server, question(stream=stream, max_tokens=400))
        engine.gate.release(5)
        wait_until(lambda: engine.steps == 5)
        if stream:
            connection.recv(1)
        connection.close()
        wait_until(lambda: not server.worker._inbox.empty())
        engine.gate.release()  # the step that had begun
        wait_until(lambda: server.worker.open == 0)
        assert not engine.running
        assert engine.steps == 6


@pytest.mark.slow
def test_two_hundred_connections_of_which_half_read_slowly_or_never(server):
    silent = [raw(server, question(stream=True, max_tokens=8)) for _ in range(100)]

    async def readers() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=120, limits=limits, trust_env=False, verify=False
        ) as client:
            return await asyncio.gather(*(streamed(client, question(seed=5)) for _ in range(100)))

    assert len(set(run_apart(readers))) == 1
    wait_until(lambda: is_idle(server), seconds=120)  # also of those who never read
    for connection in silent:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()


def random_body(rng: random.Random) -> dict:
    """A request of which most are answered, and some refused."""
    text = "".join(rng.choices(string.printable + "äß🙂<|user_end|>", k=rng.randint(1, 40)))
    body = question(text, max_tokens=rng.choice([1, 2, 5, 5000]), stream=rng.random() < 0.5)
    extra = {
        "temperature": rng.choice([0, 0.5, 2, -1]),
        "top_p": rng.choice([0.1, 1]),
        "n": rng.choice([1, 2, 99]),
        "stop": rng.choice(["a", ["b", "cc"], []]),
        "logprobs": True,
        "response_format": rng.choice([{"type": "json_object"}, {"type": "text"}, {"type": "xml"}]),
        "unknown": 1,
    }
    for name in rng.sample(list(extra), rng.randint(0, 2)):
        body[name] = extra[name]
    return body


def send_random(server: RunningServer, count: int) -> None:
    rng = random.Random(0)
    with server.client() as client:
        for _ in range(count):
            body = random_body(rng)
            if rng.random() < 0.05:
                raw(server, body).close()
                continue
            response = client.post(CHAT, json=body)
            assert response.status_code in (200, 400, 429), response.text
            assert (
                '"error": {' not in response.text or response.status_code != 200
            )  # not the result of a calculation
    wait_until(lambda: is_idle(server))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_random_requests_leak_nothing(server):
    send_random(server, 1000)
    gc.collect()
    process = psutil.Process()
    memory, files, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
    send_random(server, 9000)
    gc.collect()
    assert process.memory_info().rss - memory < 20 << 20
    assert process.num_fds() <= files + 5
    assert process.num_threads() <= threads + 5


def test_a_server_that_stops_finishes_its_answers():
    model = tiny_model()
    engine = ScriptedEngine(model, lambda _: "a whole answer", seconds=0.02)
    found = []
    with running_server(model, engine=engine) as server:

        def ask() -> None:
            with server.client() as client:
                found.append(client.post(CHAT, json=question(max_tokens=400)).json())

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: bool(engine.running))
    thread.join(60)
    assert found[0]["choices"][0]["message"]["content"] == "a whole answer"


class FailingEngine(ScriptedEngine):
    fails, refuses = True, False

    def submit(self, request):
        if self.refuses:
            raise RuntimeError("secret detail")
        return super().submit(request)

    def step(self):
        if self.running and self.fails:
            raise RuntimeError("secret detail")
        return super().step()


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_of_the_engine_ends_its_answers_and_not_the_server(stream):
    model = tiny_model()
    engine = FailingEngine(model, lambda _: "fine")
    with running_server(model, engine=engine) as server, server.client() as client:
        response = client.post(CHAT, json=question(stream=stream, max_tokens=400))
        assert "the engine failed" in response.text
        assert "secret" not in response.text
        if stream:
            assert response.text.endswith("data: [DONE]\n\n")
            assert '"type": "server_error"' in response.text
        else:
            assert response.status_code == 500
        engine.fails = False
        engine.refuses = True
        assert client.post(CHAT, json=question(max_tokens=400)).status_code == 500
        engine.refuses = False
        answer = client.post(CHAT, json=question(max_tokens=400)).json()
        assert answer["choices"][0]["message"]["content"] == "fine"


def test_a_stream_that_outlives_the_drain_ends_with_an_error_event(caplog):
    model = tiny_model()
    engine = ScriptedEngine(model, lambda _: "x" * 500, seconds=0.05)
    found = []
    with running_server(model, ServerSettings(drain_seconds=0), engine) as server:

        def ask() -> None:
            with server.client() as client:
                found.append(client.post(CHAT, json=question(stream=True, max_tokens=500)).text)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: bool(engine.running))
    thread.join(60)
    events = found[0].strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "stopping"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_slow_body_ends(monkeypatch):
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.5)
    with running_server(tiny_model()) as server:
        slow = raw(server, question(), missing=5)
        assert slow.recv(12) == b"HTTP/1.1 408"

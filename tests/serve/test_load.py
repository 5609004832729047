"""Many clients, bad clients, and the end of a server."""

import asyncio
import contextlib
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
from danalab.serve import server as server_module
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
                    text += "".join(choice["delta"].get("content", "") for choice in json.loads(last)["choices"])
    assert last == "[DONE]"
    return text


def run_clients(server: RunningServer, n_clients: int, requests: int, seconds: float = 0.0) -> int:
    """Clients that stream one request after the other, and compare each answer with that of the same seed alone.

    Each sends at least `requests`, and goes on for `seconds`. Returns the number of answers.
    """
    seeds = range(20)
    with server.client() as alone:
        answers = [alone.post(CHAT, json=question(str(seed), seed=seed, max_tokens=12)).json() for seed in seeds]
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


def raw(server: RunningServer, body: dict) -> socket.socket:
    """A connection that has sent a request and read nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    content = json.dumps(body).encode()
    head = [
        f"POST {CHAT} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + content)
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


def connect(server: RunningServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_silent_connections_give_way_and_are_named_once(caplog):
    with running_server(tiny_model(), max_connections=5) as server:
        silent = [connect(server) for _ in range(40)]
        with server.client() as client:
            assert client.post(CHAT, json=question(max_tokens=1)).status_code == 200
        wait_until(lambda: sum(each.recv(1, socket.MSG_PEEK) == b"" for each in silent[:35]) == 35)
        for each in silent:
            each.close()
    assert len(caplog.records) <= 1


def test_a_connection_too_many_is_503_while_all_have_requests():
    model = tiny_model()
    engine = GatedEngine(model, lambda _: "x" * 40)
    with running_server(model, engine=engine, max_connections=2) as server:
        busy = [raw(server, question(max_tokens=40)) for _ in range(2)]
        wait_until(lambda: server.worker.open == 2)
        with server.client() as client:
            refusal = client.get("/health")
        assert refusal.status_code == 503
        assert "2 connections are open" in refusal.json()["error"]["message"]
        engine.gate.release(100)
        assert [each.recv(12) for each in busy] == [b"HTTP/1.1 200"] * 2


def test_a_silent_connection_and_a_slow_body_end(monkeypatch):
    monkeypatch.setattr(server_module, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.5)
    with running_server(tiny_model()) as server:
        assert connect(server).recv(1) == b""
        slow = connect(server)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        assert slow.recv(12) == b"HTTP/1.1 408"


def test_clients_that_send_or_read_nothing_more_give_way_to_others():
    half = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n"
    unread = "GET /vendor/temml.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60  # 10 MB: more than buffers hold
    for sent in (half, unread):
        with running_server(tiny_model(), max_connections=3) as server:
            held = [connect(server) for _ in range(3)]
            for each in held:
                each.sendall(sent.encode())
                assert each.recv(5) == b"HTTP/"

            def is_served(server: RunningServer = server) -> bool:
                with server.client() as client:
                    return client.post(CHAT, json=question(max_tokens=1)).status_code == 200

            wait_until(is_served)  # what they read is sent until buffers are full
            for _ in range(4):
                assert is_served()
                for each in held:
                    with contextlib.suppress(OSError):  # a byte now and then does not make it wait
                        each.sendall(b" ")
            for each in held:
                each.close()


def test_a_body_has_a_time_as_a_whole(monkeypatch):
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.6)
    with running_server(tiny_model()) as server:
        slow = connect(server)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        slow.settimeout(0.1)
        for _ in range(90):
            with contextlib.suppress(TimeoutError):
                assert slow.recv(12) == b"HTTP/1.1 408"
                break
            slow.sendall(b" ")
        else:
            pytest.fail("a body that comes in small pieces has no end")


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
            assert '"error": {' not in response.text or response.status_code != 200  # not the result of a calculation
    wait_until(lambda: is_idle(server))


@pytest.mark.slow
def test_random_requests_leave_nothing_in_the_engine(server):
    send_random(server, 100)
    assert not server.worker._running
    assert server.worker.statistics.running == server.worker.statistics.waiting == 0


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
            assert "[DONE]" not in response.text
            assert '"type": "server_error"' in response.text
        else:
            assert response.status_code == 500
        engine.fails = False
        engine.refuses = True
        assert client.post(CHAT, json=question(max_tokens=400)).status_code == 500
        engine.refuses = False
        answer = client.post(CHAT, json=question(max_tokens=400)).json()
        assert answer["choices"][0]["message"]["content"] == "fine"

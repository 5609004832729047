"""The thread that owns the engine, and its metrics for Prometheus.

    route (event loop)  --submit, cancel-->  inbox  -->  engine thread: step, read tokens  --deltas-->  event loop

The engine computes in its own thread, so the event loop never waits for it. A cancellation takes effect before the
next step. Deltas of one step reach the event loop in one call.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import Request, TokenEvent
from danalab.serve.answers import Answer, Delta, TextReader
from danalab.serve.errors import RequestError

log = logging.getLogger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Indexed = tuple[int, "Delta | Exception"]
"""Index of an answer, and what is new about it."""


class Generation:
    """One request in the engine; its answer's deltas go to a queue of the event loop."""

    def __init__(self, request: Request, reader: TextReader, index: int, deltas: asyncio.Queue[Indexed]):
        self.request, self.reader, self.index, self.deltas = request, reader, index, deltas
        self.number: int | None = None
        """Number of the request in the engine, while it runs."""
        self.submitted = time.perf_counter()
        self.first_token = self.last_token = 0.0
        self.tokens = 0
        self.ended = False


class Generations:
    """The answers to one HTTP request: an asynchronous iterator of (index of the answer, delta)."""

    def __init__(self, worker: EngineWorker, pairs: Sequence[tuple[Request, TextReader]]):
        self._worker = worker
        self._deltas: asyncio.Queue[Indexed] = asyncio.Queue()
        self.all = [Generation(request, reader, i, self._deltas) for i, (request, reader) in enumerate(pairs)]
        self.answers = [Answer() for _ in pairs]
        """The answers as far as they have been iterated over."""

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        unfinished = len(self.all)
        while unfinished:
            index, delta = await self._deltas.get()
            if isinstance(delta, Exception):
                raise delta
            unfinished -= delta.finish_reason is not None
            self.answers[index].add(delta)
            yield index, delta

    async def finish(self) -> None:
        """Wait for the whole answers."""
        async for _ in self:
            pass

    @property
    def tokens(self) -> int:
        """Generated so far, of all answers."""
        return sum(generation.tokens for generation in self.all)

    def cancel(self) -> None:
        """Free the slots of unfinished answers before the engine's next step."""
        for generation in self.all:
            self._worker.end(generation, Delta(finish_reason="cancelled"))


class EngineWorker:
    """Runs an engine in a thread for callers in an event loop; refuses more than `max_requests` running and waiting."""

    def __init__(self, name: str, engine: Engine, metrics: Metrics, *, max_requests: int):
        self.name, self.engine, self.metrics, self.max_requests = name, engine, metrics, max_requests
        self.open = 0
        """Running and waiting requests."""
        self.statistics = engine.statistics
        """Counts and load after the last step."""
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: dict[int, Generation] = {}
        self._outbox: list[tuple[Generation, Delta | Exception]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; deltas go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._inbox.put(None)
        self._thread.join()

    # ---- in the event loop ----

    def submit(self, pairs: Sequence[tuple[Request, TextReader]]) -> Generations:
        """Queue all requests, or none of them. Raises RequestError: the queue is full, or the server stops."""
        if self._end_error is not None:
            raise self._end_error
        if self.open + len(pairs) > self.max_requests:
            self.metrics.refused.labels(self.name).inc()
            message = f"{self.open} requests are running or waiting; {self.max_requests} is the limit: try again later"
            raise RequestError(429, message, code="queue_full", headers={"retry-after": "1"})
        self.open += len(pairs)
        generations = Generations(self, pairs)
        for generation in generations.all:
            self._inbox.put(partial(self._submit, generation))
        return generations

    def end(self, generation: Generation, delta: Delta | Exception) -> None:
        """End an answer before the engine's next step; without effect when it has ended."""
        if not generation.ended:
            self._inbox.put(partial(self._end, generation, delta))

    def end_all(self, error: Exception) -> None:
        """End every answer with an error, also those that are still to come."""
        self._end_error = error
        self._inbox.put(partial(self._end_all, error))

    def _deliver(self, outbox: list[tuple[Generation, Delta | Exception]]) -> None:
        for generation, delta in outbox:
            reason = "error" if isinstance(delta, Exception) else delta.finish_reason
            if reason is not None and not generation.ended:
                generation.ended = True
                self.open -= 1
                self.metrics.finished(self.name, generation, reason)
            generation.deltas.put_nowait((generation.index, delta))

    # ---- in the engine's thread ----

    def _run(self) -> None:
        while self._take_commands():
            try:
                events = self.engine.step()
            except Exception as error:  # the model diverged, or a fault of ours: nobody may wait for ever
                events = []
                self._end_all(_request_error(error, 500))
            for event in events:
                self._read(event)
            self.statistics = self.engine.statistics
            self._flush()

    def _take_commands(self) -> bool:
        """Carry out what is in the inbox, waiting for something if there is nothing to compute."""
        while True:
            try:
                command = self._inbox.get(block=not self._running)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            self._flush()

    def _submit(self, generation: Generation) -> None:
        if generation.ended:
            return
        try:
            generation.number = self.engine.submit(generation.request)
        except Exception as error:
            status = 400 if isinstance(error, UserError) else 500
            self._outbox.append((generation, _request_error(error, status)))
        else:
            self._running[generation.number] = generation

    def _end(self, generation: Generation, delta: Delta | Exception) -> None:
        self._leave(generation)
        self._outbox.append((generation, delta))

    def _end_all(self, error: Exception) -> None:
        for generation in list(self._running.values()):
            self._end(generation, error)

    def _leave(self, generation: Generation) -> None:
        """Take a generation out of the engine, which may have ended it before."""
        if generation.number is not None:
            del self._running[generation.number]
            self.engine.cancel(generation.number)
            generation.number = None

    def _read(self, event: TokenEvent) -> None:
        generation = self._running.get(event.request_id)
        if generation is None:
            return
        generation.tokens += event.token >= 0
        generation.last_token = time.perf_counter()
        generation.first_token = generation.first_token or generation.last_token
        try:
            delta = generation.reader.read(event, self.engine)
        except Exception as error:
            self._end(generation, _request_error(error, 500))
            return
        if delta.finish_reason is not None or delta.continued is not None:
            self._leave(generation)
        if delta.continued is not None:
            generation.request = delta.continued
            self._submit(generation)
        self._outbox.append((generation, delta))

    def _flush(self) -> None:
        if self._outbox and self._loop is not None:
            outbox, self._outbox = self._outbox, []
            self._loop.call_soon_threadsafe(self._deliver, outbox)


class Metrics:
    """Counts and times of the models of a server, each sample with the label "model"."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.running = self._add(Gauge, "requests_running", "Requests that the engine decodes")
        self.waiting = self._add(Gauge, "requests_waiting", "Requests that wait for a slot")
        self.cache_use = self._add(
            Gauge, "cache_use_ratio", "Share of the engine's cache that running requests hold"
        )
        self.prefix_tokens = self._add(Gauge, "prefix_hit_tokens", "Prompt tokens found in the cache")
        self.refused = self._add(Counter, "requests_refused", "Requests refused because the queue was full")
        self.requests = self._add(Counter, "requests", "Finished generations", "finish_reason")
        self.prompt_tokens = self._add(Counter, "prompt_tokens", "Prompt tokens of finished generations")
        self.generated_tokens = self._add(Counter, "generated_tokens", "Tokens of finished generations")
        self.to_first = self._add(Histogram, "time_to_first_token_seconds", "Until the first token [s]")
        self.per_token = self._add(Histogram, "time_per_output_token_seconds", "Between two tokens [s]")

    def _add(self, kind: Any, name: str, text: str, *labels: str) -> Any:
        more: dict[str, Any] = {"buckets": _BUCKETS} if kind is Histogram else {}
        return kind(f"danalab_{name}", text, registry=self._registry, labelnames=["model", *labels], **more)

    def finished(self, model: str, generation: Generation, reason: str) -> None:
        """Count an answer that has ended."""
        self.requests.labels(model, reason).inc()
        self.prompt_tokens.labels(model).inc(len(generation.request.prompt))
        self.generated_tokens.labels(model).inc(generation.tokens)
        if generation.tokens:
            self.to_first.labels(model).observe(generation.first_token - generation.submitted)
        if generation.tokens > 1:
            seconds = (generation.last_token - generation.first_token) / (generation.tokens - 1)
            self.per_token.labels(model).observe(seconds)

    def page(self, workers: Iterable[EngineWorker]) -> bytes:
        """All of them as Prometheus reads them, with the engines' present load."""
        for worker in workers:
            load = worker.statistics
            self.running.labels(worker.name).set(load.running)
            self.waiting.labels(worker.name).set(load.waiting)
            self.cache_use.labels(worker.name).set(load.cache_blocks_used / max(load.cache_blocks, 1))
            self.prefix_tokens.labels(worker.name).set(load.reused_tokens)
        return generate_latest(self._registry)


def _request_error(error: Exception, status: int) -> RequestError:
    """An error of the engine as one that a client may see; other details are for the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UserError):
        return RequestError(status, str(error), code=None if status == 400 else "engine_error")
    log.error("the engine failed", exc_info=error)
    return RequestError(500, "the engine failed; the server's log has the reason", code="engine_error")

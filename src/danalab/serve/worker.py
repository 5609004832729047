"""The thread that owns the engine.

    route (event loop)  --submit, cancel-->  inbox  -->  engine thread: step, read tokens  --deltas-->  event loop

The engine computes in its own thread, so the event loop never waits for it. A cancellation takes effect before the
next step. Deltas of one step reach the event loop in one call.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from danalab.errors import UserError
from danalab.inference.engine import Engine
from danalab.inference.request import Request, TokenEvent
from danalab.serve.answers import Delta, TextReader
from danalab.serve.errors import RequestError

log = logging.getLogger(__name__)

Indexed = tuple[int, "Delta | Exception"]
"""Index of an answer, and what is new about it."""


@dataclass(eq=False)
class Generation:
    """One request in the engine; its answer's deltas go to a queue of the event loop."""

    request: Request
    reader: TextReader
    index: int
    deltas: asyncio.Queue[Indexed]
    number: int | None = None
    """Number of the request in the engine, while it runs."""
    tokens: int = 0
    ended: bool = False


class Generations:
    """The answers to one HTTP request: an asynchronous iterator of (index of the answer, delta)."""

    def __init__(self, worker: EngineWorker, pairs: Sequence[tuple[Request, TextReader]]):
        self._worker = worker
        self._deltas: asyncio.Queue[Indexed] = asyncio.Queue()
        self.all = [Generation(request, reader, i, self._deltas) for i, (request, reader) in enumerate(pairs)]
        self.answers = [Delta() for _ in pairs]
        """The answers as far as they have been iterated over."""

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        unfinished = len(self.all)
        while unfinished:
            index, delta = await self._deltas.get()
            if isinstance(delta, Exception):
                raise delta
            unfinished -= delta.finish_reason is not None
            self.answers[index] += delta
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

    def __init__(self, engine: Engine, *, max_requests: int):
        self.engine, self.max_requests = engine, max_requests
        self.open = 0
        """Running and waiting requests."""
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
            is_last = isinstance(delta, Exception) or delta.finish_reason is not None
            if is_last and not generation.ended:
                generation.ended = True
                self.open -= 1
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


def _request_error(error: Exception, status: int) -> RequestError:
    """An error of the engine as one that a client may see; other details are for the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, UserError):
        return RequestError(status, str(error), code=None if status == 400 else "engine_error")
    log.error("the engine failed", exc_info=error)
    return RequestError(500, "the engine failed; the server's log has the reason", code="engine_error")

"""A running server for models, and its end: a signal stops new requests, running ones are finished."""

import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from danalab.errors import UserError
from danalab.inference import Engine
from danalab.serve.app import JsonAnswer, create_app
from danalab.serve.fields import RequestError, error_json
from danalab.serve.planner import ChatModel
from danalab.serve.settings import ServerSettings
from danalab.serve.worker import EngineWorker

log = logging.getLogger(__name__)

ACCEPTED_TOGETHER = 64  # connections that are accepted in one turn of the event loop: beyond the limit for a moment
SPARE_FILES = 32  # open files for everything but connections: the page, the log, libraries
SILENT_SECONDS = 75  # a connection without a request is closed after this time [s]; clients close theirs earlier
WARNING_SECONDS = 60  # between two warnings that the limit on connections is reached [s]


def serve(
    chat_models: Sequence[ChatModel],
    listener: socket.socket,
    settings: ServerSettings,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish running requests, for at most `settings.drain_seconds`.

    Models have different names, each an engine; `listener` is of `bind`; `ready` is called when requests are accepted.
    """
    app = create_app([(each, make_worker(each, settings)) for each in chat_models], settings, ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again after a regular end
    uvicorn.Server(uvicorn_config(app, settings)).run(sockets=[listener])


def bind(settings: ServerSettings) -> socket.socket:
    """The listening socket; UserError: the address is not ours or in use, or too few files may be opened."""
    connection_limit(settings.max_connections)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"--host {settings.host} --port {settings.port}: {reason}") from None
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener


def make_worker(chat_model: ChatModel, settings: ServerSettings) -> EngineWorker:
    """The engine of a model in its thread, not started."""
    engine = Engine(
        chat_model.model,
        chat_model.tokenizer,
        max_batch_size=settings.max_batch_size,
        cache_tokens=settings.cache_tokens,
        batch_invariant=settings.batch_invariant,
    )
    return EngineWorker(engine, max_requests=settings.max_batch_size + settings.max_waiting)


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn runs the application."""
    limit = connection_limit(settings.max_connections)
    return uvicorn.Config(
        app,
        http=partial(Connection, limit=limit),  # pyright: ignore[reportArgumentType]
        ws="none",
        backlog=ACCEPTED_TOGETHER,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_seconds,
        timeout_keep_alive=SILENT_SECONDS,
    )


def connection_limit(wanted: int) -> int:
    """`wanted` connections, or fewer where the process may open fewer files; UserError: too few for a server."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else SPARE_FILES
    needed = opened + ACCEPTED_TOGETHER + SPARE_FILES
    if files <= needed:
        raise UserError(f"a server needs more than {needed} open files, and this process may have {files}: ulimit -n")
    return min(wanted, files - needed)


class Connection(H11Protocol):
    """A connection: at the limit it replaces that which waits for its client longest; if none does, it gets status 503.

    uvicorn's `limit_concurrency` counts connections without a request and half-sent bodies: clients that send a byte a
    minute would shut out all others.
    """

    _warned = -WARNING_SECONDS

    def __init__(self, *args: Any, limit: int, **settings: Any):
        super().__init__(*args, **settings)
        self._limit, self._waits_since = limit, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to do something: begin a request, send the rest of a body, read an answer."""
        return not self.has_request or self.cycle.more_body or self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) <= self._limit:
            return
        if time.monotonic() - Connection._warned > WARNING_SECONDS:
            Connection._warned = time.monotonic()
            log.warning(
                "%d connections are open, the limit: those that wait for their clients are closed first", self._limit
            )
        others: list[Any] = [each for each in self.connections if each is not self]
        waiting = [each for each in others if each.waits_for_client and not each.transport.is_closing()]
        if waiting:
            min(waiting, key=lambda each: each._waits_since).transport.abort()
            return
        error = RequestError(503, f"{self._limit} connections are open, the limit of this server: try again later")
        self.app = JsonAnswer(error_json(error), error.status, {"retry-after": "1", "connection": "close"})

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        self._waits_since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._waits_since = time.monotonic()
        super().pause_writing()

    def _watch(self) -> None:
        is_unread = self.has_request and self.flow.write_paused
        if (is_unread or not self.has_request) and time.monotonic() - self._waits_since > SILENT_SECONDS:
            self.transport.abort()  # close() would wait until the client has read what it was sent
        else:
            self._timer = self.loop.call_later(SILENT_SECONDS / 5, self._watch)

"""From a model to a running server, and its end: a signal stops new requests, running ones are finished."""

import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import uvicorn
from fastapi import FastAPI

from danalab.chat.assistant.chat_model import ChatModel
from danalab.chat.server.app import create_app
from danalab.chat.server.connections import ACCEPTED_TOGETHER, SILENT_SECONDS, Connection, connection_limit
from danalab.chat.server.metrics import Metrics
from danalab.chat.server.settings import ServerSettings
from danalab.chat.server.worker import EngineWorker
from danalab.errors import UserError
from danalab.inference import Engine


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Size of the engine and of its queue."""

    max_batch_size: int = 32
    """Requests that are decoded together."""
    max_waiting: int = 256
    """Requests that wait for a slot; more get status 429."""
    cache_tokens: int | None = None
    """Capacity of the cache [tokens]; None: the engine's default."""
    batch_invariant: bool = False
    """The bits of an answer do not depend on other requests."""


def make_worker(chat_model: ChatModel, settings: EngineSettings) -> EngineWorker:
    """The engine of a model in its thread, not started."""
    engine = Engine(
        chat_model.model,
        chat_model.tokenizer,
        max_batch_size=settings.max_batch_size,
        cache_tokens=settings.cache_tokens,
        batch_invariant=settings.batch_invariant,
    )
    return EngineWorker(engine, max_requests=settings.max_batch_size + settings.max_waiting, metrics=Metrics())


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        UserError: the address is not ours, or in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"--host {host} --port {port}: {reason}") from None
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener


def uvicorn_config(app: FastAPI, drain_seconds: int, max_connections: int = 1000) -> uvicorn.Config:
    """How uvicorn runs the application.

    Raises:
        UserError: the process may open too few files.
    """
    return uvicorn.Config(
        app,
        http=partial(Connection, limit=connection_limit(max_connections)),  # pyright: ignore[reportArgumentType]
        backlog=ACCEPTED_TOGETHER,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_seconds,
        timeout_keep_alive=SILENT_SECONDS,
    )


def serve(
    chat_model: ChatModel,
    listener: socket.socket,
    settings: ServerSettings,
    engine: EngineSettings,
    *,
    drain_seconds: int = 30,
    max_connections: int = 1000,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish running requests, for at most `drain_seconds`.

    Args: ready: called when requests are accepted.
    """
    app = create_app(chat_model, make_worker(chat_model, engine), settings, ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again after a regular end
    uvicorn.Server(uvicorn_config(app, drain_seconds, max_connections)).run(sockets=[listener])

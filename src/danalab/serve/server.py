"""A running server for models, and its end: a signal stops new requests, running ones are finished or told."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from danalab.errors import UserError
from danalab.serve.app import create_app
from danalab.serve.chat_model import ChatModel
from danalab.serve.errors import RequestError
from danalab.serve.settings import ServerSettings
from danalab.serve.worker import EngineWorker

log = logging.getLogger(__name__)

SILENT_SECONDS = (
    75  # a connection without a request is closed after this time [s]; clients close theirs earlier
)
SPARE_SECONDS = 3  # for clients to take the last event after the time to finish [s]


def serve(
    chat_models: Sequence[ChatModel],
    listener: socket.socket,
    settings: ServerSettings,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish running requests, for at most `settings.drain_seconds`.

    Models have different names, each an engine; `listener` is of `bind`; `ready` is called when requests are accepted.
    """
    workers = [make_worker(each, settings) for each in chat_models]
    app = create_app(list(zip(chat_models, workers, strict=True)), settings, ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again after a regular end
    gc.freeze()  # collections look at what requests make, not for 0.3 s at all that is imported, and seldom
    gc.set_threshold(50_000)
    Server(app, settings, workers).run(sockets=[listener])


def bind(settings: ServerSettings) -> socket.socket:
    """The listening socket; UserError: the address is not ours, or in use."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sends at once
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
    engine = chat_model.engine(max_batch_size=settings.max_batch_size, cache_tokens=settings.cache_tokens)
    return EngineWorker(engine, max_requests=settings.max_batch_size + settings.max_waiting)


class Server(uvicorn.Server):
    """uvicorn, which tells answers that outlive the time to finish that they end here."""

    def __init__(self, app: Any, settings: ServerSettings, workers: Sequence[EngineWorker]):
        self._workers, self._drain_seconds = workers, settings.drain_seconds
        config = uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            limit_concurrency=settings.max_connections,
            timeout_graceful_shutdown=settings.drain_seconds + 3 * SPARE_SECONDS,
            timeout_keep_alive=SILENT_SECONDS,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish running requests."""
        call_later = asyncio.get_running_loop().call_later
        timers = [
            call_later(self._drain_seconds, self._end_answers),
            call_later(self._drain_seconds + SPARE_SECONDS, self._close_connections),
        ]
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()

    def _end_answers(self) -> None:
        left = sum(worker.open for worker in self._workers)
        if left:
            log.warning(
                "%d answers are not finished after %d s; the server ends them", left, self._drain_seconds
            )
        for worker in self._workers:
            worker.end_all(
                RequestError(503, "the server stops before this answer is complete", code="stopping")
            )

    def _close_connections(self) -> None:
        """Leave clients that do not read, or have not sent all of their request."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

"""Connections: how many there may be, and how long one may be silent."""

import asyncio
import logging
import os
import resource
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from danalab.chat.assistant.errors import RequestError
from danalab.chat.server.error_json import error_json, json_bytes
from danalab.errors import UserError

log = logging.getLogger(__name__)

ACCEPTED_TOGETHER = 64
"""Connections that are accepted in one turn of the event loop: beyond the limit for a moment."""
_SPARE_FILES = 32
"""Open files for everything else: the page, log, libraries."""
SILENT_SECONDS = 75
"""A connection without a request in progress is closed after this time [s]; longer than clients keep theirs, so that
they close it."""


def connection_limit(wanted: int) -> int:
    """Connections that the process may have: `wanted`, or fewer where it may open fewer files.

    Raises:
        UserError: it may open too few files for a server.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else _SPARE_FILES
    if files == resource.RLIM_INFINITY:
        return wanted
    needed = used + ACCEPTED_TOGETHER + _SPARE_FILES
    if files <= needed:
        raise UserError(f"a server needs more than {needed} open files, and this process may have {files}: ulimit -n")
    return min(wanted, files - needed)


class Connection(H11Protocol):
    """A client's connection.

    At the limit a new one takes the place of that which has been without a request for longest; where all have one, it
    gets status 503.
    """

    _last_warning = -1e9

    def __init__(self, *args: Any, limit: int, **settings: Any):
        super().__init__(*args, **settings)
        self._limit, self._silent_since = limit, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self._limit:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        self._silent_since = time.monotonic()
        super().on_response_complete()

    def _watch(self) -> None:
        if not self.has_request and time.monotonic() - self._silent_since > SILENT_SECONDS:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(SILENT_SECONDS / 5, self._watch)

    def _make_room(self) -> None:
        others: list[Any] = [
            each for each in self.connections if not (each is self or each.has_request or each.transport.is_closing())
        ]
        oldest = min(others, key=lambda each: each._silent_since, default=None)
        if time.monotonic() - Connection._last_warning > 60:
            Connection._last_warning = time.monotonic()
            log.warning("%d connections are open, the limit: those without a request are closed first", self._limit)
        if oldest is not None:
            oldest.transport.close()
            return
        error = RequestError(503, f"{self._limit} connections are open, the limit of this server: try again later")
        body = json_bytes(error_json(error))
        head = (
            "HTTP/1.1 503 Service Unavailable", "content-type: application/json", f"content-length: {len(body)}",
            "retry-after: 1", "connection: close", "", "",
        )  # fmt: skip
        self.transport.write("\r\n".join(head).encode() + body)
        self.transport.close()

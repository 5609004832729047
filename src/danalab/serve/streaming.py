"""Answers on the wire: JSON, server-sent events, and cancelling work when the client disconnects; the log of them."""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse

from danalab.serve.fields import RequestError, error_json, json_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")


class JsonAnswer(JSONResponse):
    """A response with any text that a client or a model can write."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


class EventStream(StreamingResponse):
    """A stream of events; `end` is called however it ends. `named`: an event has a line with its type, not [DONE]."""

    def __init__(
        self, chunks: AsyncIterator[dict[str, Any]], end: Callable[[], None], headers: dict[str, str], *, named: bool
    ):
        self._end = end
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        super().__init__(_events(chunks, named), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _events(chunks: AsyncIterator[dict[str, Any]], named: bool) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield _event(chunk, chunk["type"] if named else None)
    except RequestError as error:  # the status is sent already
        content = error_json(error)
        yield _event({"type": "error", **content["error"]}, "error") if named else _event(content, None)
        return
    if not named:
        yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any], name: str | None) -> bytes:
    return (b"" if name is None else b"event: %b\n" % name.encode()) + b"data: %b\n\n" % json_bytes(content)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. Raises ClientDisconnect: the client has gone."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class ConversationLog:
    """A file with a JSON object a line (line breaks are escaped), readable by its owner only; OSError: not writable."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, endpoint: str, request: dict[str, Any], answers: list[str]) -> None:
        """Append one request and the texts of its answers; a full disk is a warning, not the end of an answer."""
        row = {"time": round(time.time(), 3), "endpoint": endpoint, "request": request, "answers": answers}
        try:
            os.write(self._file, json.dumps(row).encode() + b"\n")
        except OSError as error:
            log.warning("a conversation could not be logged: %s", error.strerror)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

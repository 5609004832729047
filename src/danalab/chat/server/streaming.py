"""Answers as server-sent events, and cancelling work when the client disconnects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from danalab.chat.assistant.errors import RequestError
from danalab.chat.server.error_json import error_json, json_bytes

T = TypeVar("T")


class EventStream(StreamingResponse):
    """A stream of events."""

    def __init__(self, chunks: AsyncIterator[dict[str, Any]], end: Callable[[], None], *, named: bool, done: bool):
        """Args:
        end: called however the stream ends.
        named: whether an event has a line with its name, its "type".
        done: whether "[DONE]" ends the stream.
        """
        self._end = end
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_events(chunks, named, done), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _events(chunks: AsyncIterator[dict[str, Any]], named: bool, done: bool) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield _event(chunk, chunk["type"] if named else None)
    except RequestError as error:  # the status is sent already
        content = error_json(error)
        yield _event({"type": "error", **content["error"]}, "error") if named else _event(content, None)
        return
    if done:
        yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any], name: str | None) -> bytes:
    return (b"" if name is None else b"event: %b\n" % name.encode()) + b"data: %b\n\n" % json_bytes(content)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`.

    Raises:
        ClientDisconnect: the client has gone.
    """
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

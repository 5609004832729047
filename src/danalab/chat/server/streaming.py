"""Answers on the wire: server-sent events, and the end of work that nobody waits for any more."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from danalab.chat.assistant.errors import RequestError
from danalab.chat.server.error_json import error_json

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


async def _events(chunks: AsyncIterator[dict[str, Any]], named: bool, done: bool) -> AsyncIterator[str]:
    try:
        async for chunk in chunks:
            name = f"event: {chunk['type']}\n" if named else ""
            yield f"{name}data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    except RequestError as error:  # the status is sent already
        name = "event: error\n" if named else ""
        content = error_json(error)
        content = {"type": "error", **content["error"]} if named else content
        yield f"{name}data: {json.dumps(content)}\n\n"
        return
    if done:
        yield "data: [DONE]\n\n"


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

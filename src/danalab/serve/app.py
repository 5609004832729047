"""The application: routes, the gate in front of them, and errors in OpenAI's form.

POST /v1/chat/completions -> read_request -> plan_chat -> EngineWorker -> ChatWriter -> events
"""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from danalab.chat.dialects import conversations_in
from danalab.chat.messages import FieldError
from danalab.errors import UserError
from danalab.serve.answers import ChatWriter, CompletionWriter
from danalab.serve.chat_model import ChatModel
from danalab.serve.errors import RequestError
from danalab.serve.requests import ChatRequest, CompletionRequest, plan_chat, plan_completion, read_request
from danalab.serve.settings import LOCAL_HOSTS, ServerSettings
from danalab.serve.worker import EngineWorker, Generations

log = logging.getLogger(__name__)
T = TypeVar("T")

PAGE = Path(__file__).parent / "page"
BODY_SECONDS = 60  # from a request's head to the end of its body at most [s]
JSON_TYPE = re.compile(r"application/(json|[\w.+-]+\+json)\s*(;|$)", re.IGNORECASE)
Served = tuple[ChatModel, EngineWorker]
CHAT = (ChatRequest, plan_chat, ChatWriter)
COMPLETIONS = (CompletionRequest, plan_completion, CompletionWriter)


def create_app(
    served: Sequence[Served], settings: ServerSettings, ready: Callable[[], None] = lambda: None
) -> Any:
    """The server of models of different names with their engines, the first the default; calls `ready` at its start."""
    api = Api({model.name: (model, worker) for model, worker in served}, settings)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        for _, worker in served:
            worker.start()
        ready()
        yield
        for _, worker in served:
            await run_in_threadpool(worker.stop)

    routes = [
        Route("/v1/chat/completions", partial(api.answer, CHAT), methods=["POST"]),
        Route("/v1/completions", partial(api.answer, COMPLETIONS), methods=["POST"]),
        Route("/v1/conversations", api.conversations, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/v1/models/{name:path}", api.model),
        Route("/v1/{path:path}", api.unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        Route("/health", api.health),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    middleware = [
        Middleware(
            CORSMiddleware, allow_origins=settings.cors_origin, allow_methods=["*"], allow_headers=["*"]
        ),
        Middleware(Gate, settings=settings),
    ]
    handlers = dict.fromkeys((UserError, HTTPException, ClientDisconnect, Exception), _refuse)
    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan, exception_handlers=handlers)


class Api:
    """The endpoints."""

    def __init__(self, served: Mapping[str, Served], settings: ServerSettings):
        self._served, self._settings = served, settings

    async def answer(self, endpoint: tuple[Any, Any, type[CompletionWriter]], request: Request) -> Response:
        """POST /v1/chat/completions and /v1/completions."""
        kind, plan, writer_class = endpoint
        body = await _body(request, self._settings.max_body_kb * 1024)

        def planned() -> tuple[Any, str, Served, Any]:
            """In a thread: parsing, tokenizing and compiling a grammar take time."""
            asked, warning = read_request(kind, _parsed(body))
            served = self._named(asked.model)
            work = plan(asked, served[0], self._settings.max_choices, request.state.scope)
            return asked, warning, served, work

        asked, warning, (model, worker), (pairs, prompt_tokens) = await run_in_threadpool(planned)
        generations = worker.submit(pairs)
        writer = writer_class(model.name, prompt_tokens, usage=asked.wants_usage)
        headers = {"warning": f'299 danalab "{warning}"'} if warning else {}
        if asked.stream:
            return EventStream(generations, writer, headers)
        try:
            await while_connected(request, generations.finish())
        finally:
            generations.cancel()
        return json_answer(writer.whole(generations.answers, generations.tokens), headers=headers)

    async def conversations(self, request: Request) -> Response:
        """POST /v1/conversations: a file's text in any dialect becomes messages, for the page's import."""
        body = await _body(request, self._settings.max_body_kb * 1024)

        def read() -> list[dict[str, Any]]:
            content = _parsed(body)
            text = content.get("text") if isinstance(content, dict) else None
            if not isinstance(text, str):
                raise FieldError("'text' must be the text of a file of conversations", param="text")
            file = io.BytesIO(text.encode("utf-8", "surrogatepass"))
            return [conversation.as_dict() for _, conversation in conversations_in(file)]

        return json_answer({"conversations": await run_in_threadpool(read)})

    async def unknown(self, request: Request) -> Response:
        """What OpenAI's API has, and this one has not."""
        raise RequestError(
            404, f"this server has no {request.method} {request.url.path}; see docs/serving.md"
        )

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        return json_answer(
            {"object": "list", "data": [_model_card(model) for model, _ in self._served.values()]}
        )

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        return json_answer(_model_card(self._named(request.path_params["name"])[0]))

    async def health(self, _: Request) -> Response:
        """GET /health."""
        stopped = [name for name, (_, worker) in self._served.items() if not worker.is_alive]
        status = f"the engine of {', '.join(stopped)} has stopped" if stopped else "ok"
        requests = sum(worker.open for _, worker in self._served.values())
        return json_answer({"status": status, "requests": requests}, 503 if stopped else 200)

    def _named(self, name: str | None) -> Served:
        """The model of a request; the first where it names none."""
        if name is None:
            return next(iter(self._served.values()))
        if name not in self._served:
            message = f"no model {name!r:.100}: this server has {', '.join(map(repr, self._served))}"
            raise RequestError(404, message, param="model", code="model_not_found")
        return self._served[name]


def _model_card(model: ChatModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "danalab",
        "max_model_len": model.context,
        "step": model.step,
        "chat": model.is_chat,
    }


# ---- reading ----


async def _body(request: Request, limit: int) -> bytes:
    """The body of a request, of the right type, within the limits on size and time."""
    kind = request.headers.get("content-type")
    if JSON_TYPE.match(kind or "") is None:
        given = "missing" if kind is None else f"{kind!r:.100}"
        raise RequestError(415, f"the Content-Type header is {given}; it must be application/json")
    data = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            data.extend(chunk)
            if len(data) > limit:
                told = f"the body is larger than {limit} bytes, the limit of this server"
                raise RequestError(413, told, code="body_too_large", headers={"connection": "close"})

    try:
        await asyncio.wait_for(read(), BODY_SECONDS)
    except asyncio.TimeoutError:
        told = f"the body is not complete after {BODY_SECONDS} s; it must be sent faster"
        raise RequestError(408, told, headers={"connection": "close"}) from None
    return bytes(data)


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body)  # twice as fast as Python's own, which lets no other thread run meanwhile
    except ValueError as error:  # also bytes that are not UTF-8
        raise FieldError(f"the body is not valid JSON: {error}") from None


# ---- the gate ----

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
"""The page may load and call nothing but this server, so text that a model writes cannot either. A browser asks for
each file each time, and an unchanged one is not sent again."""


class Gate:
    """Refuses requests to another host, from other pages, or without an accepted key; a key has its own prefixes."""

    def __init__(self, app: Any, settings: ServerSettings):
        self.app, self.is_local, self._origins = app, settings.is_local, settings.cors_origin
        self._keys = settings.api_key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            request.state.scope = self._admit(request)
        except FieldError as error:
            await refusal(error)(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _admit(self, request: Request) -> str:
        """The scope of prefixes that a request may share."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # Its name or address, without port and brackets: [::1]:8000 is ::1.
        match = re.fullmatch(r"(?:\[([^][]*)\]|([^:]*))(?::\d*)?", host)
        name = "" if match is None else (match[1] or match[2] or "").lower()
        if self.is_local and name not in LOCAL_HOSTS:  # another page's name for this machine: DNS rebinding
            must = f"it must be one of {', '.join(LOCAL_HOSTS)}, or the server's --host an address of the network"
            raise FieldError(f"the Host header is {host!r:.100}; {must}")
        is_own = origin is None or origin.partition("://")[2] == host or {origin, "*"} & set(self._origins)
        if request.method == "POST" and not is_own:
            raise RequestError(403, f"origin {origin:.100} is not allowed; allow it with --cors-origin")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else b""
        accepted = [key for key in self._keys if hmac.compare_digest(given, key.encode())]
        if self._keys and not accepted and request.url.path.startswith("/v1/"):
            reason, more = (
                "this server needs a key: send 'Authorization: Bearer KEY'",
                {"www-authenticate": "Bearer"},
            )
            raise RequestError(401, reason, code="invalid_api_key", headers=more)
        return accepted[0] if accepted else ""


# ---- answering ----


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response in ASCII: UTF-8 has no bytes for half of a surrogate pair, which a client can send."""
    return Response(json.dumps(content), status, headers, media_type="application/json")


class EventStream(StreamingResponse):
    """A stream of events; however it ends, its answers end."""

    def __init__(self, generations: Generations, writer: CompletionWriter, headers: dict[str, str]):
        self._generations = generations
        headers = {"x-accel-buffering": "no", **headers}
        super().__init__(_events(generations, writer), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generations.cancel()


async def _events(generations: Generations, writer: CompletionWriter) -> AsyncIterator[str]:
    try:
        for chunk in writer.first(len(generations.all)):
            yield _event(chunk)
        async for index, delta in generations:
            for chunk in writer.chunks(index, delta):
                yield _event(chunk)
        for chunk in writer.last(generations.tokens):
            yield _event(chunk)
    except RequestError as error:  # the status is sent already
        yield _event(error_json(error))
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. Raises ClientDisconnect: the client has gone."""

    async def disconnection() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnection())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


# ---- errors ----

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def error_json(error: Exception) -> dict[str, Any]:
    """The body of an error's response."""
    status, param, code = (getattr(error, name, None) for name in ("status", "param", "code"))
    kind = _KINDS.get(status or 400, "server_error" if (status or 400) >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def refusal(error: Exception) -> Response:
    """The response of a `RequestError`; other errors of users have the status 400."""
    return json_answer(error_json(error), getattr(error, "status", 400), getattr(error, "headers", None))


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, HTTPException):
        error = RequestError(error.status_code, str(error.detail), headers=error.headers)
    elif not isinstance(error, UserError):
        error = RequestError(500, "internal server error; see the server's log", code="internal_error")
    return refusal(error)

"""The application: routes, checks in front of them, and errors in OpenAI's form.

POST /v1/chat/completions -> ChatCompletionRequest -> Planner -> EngineWorker -> ChatCompletionWriter -> EventStream
"""

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from danalab import __version__
from danalab.chat.conversations import field_error
from danalab.chat.messages import Body, ignored_fields
from danalab.errors import UserError
from danalab.registry import Registry
from danalab.serve.completions import (
    ChatCompletionRequest,
    ChatCompletionWriter,
    ChoiceWriter,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from danalab.serve.fields import RequestError, error_json
from danalab.serve.planner import ChatModel, Planner
from danalab.serve.settings import LOCAL_HOSTS, ServerSettings
from danalab.serve.worker import METRICS_TYPE, EngineWorker, metrics_page

log = logging.getLogger(__name__)
T = TypeVar("T")

PAGE = Path(__file__).parent / "page"
PAGE_FILES = StaticFiles(directory=PAGE)

ENDPOINTS: Registry[tuple[type[Body], Any]] = Registry("endpoint")
"""Path -> (what is asked, what writes its answer)."""
ENDPOINTS.add("/v1/chat/completions", (ChatCompletionRequest, ChatCompletionWriter))
ENDPOINTS.add("/v1/completions", (CompletionRequest, ChoiceWriter))


def create_app(
    served: Sequence[tuple[ChatModel, EngineWorker]], settings: ServerSettings, ready: Callable[[], None] = lambda: None
) -> FastAPI:
    """The server of models of different names with their engines, the first the default; calls `ready` at its start."""
    workers = {chat_model.name: worker for chat_model, worker in served}
    models = {chat_model.name: chat_model for chat_model, _ in served}
    record = None if settings.log_conversations is None else ConversationLog(settings.log_conversations)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for worker in workers.values():
            worker.start()
        ready()
        yield
        for worker in workers.values():
            await run_in_threadpool(worker.stop)
        if record is not None:
            record.close()

    app = FastAPI(title="danalab", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    _handle_errors(app)
    _add_routes(app, models, workers, settings, record)
    for file in filter(Path.is_file, PAGE.rglob("*")):
        name = file.relative_to(PAGE).as_posix()
        route = "/" if name == "index.html" else f"/{name}"
        app.router.add_route(route, partial(_page_file, name), include_in_schema=False)
    app.add_middleware(Gate, settings=settings)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origin), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_routes(
    app: FastAPI,
    models: Mapping[str, ChatModel],
    workers: Mapping[str, EngineWorker],
    settings: ServerSettings,
    record: "ConversationLog | None",
) -> None:
    first = next(iter(models.values()))

    async def answer(request: Request, body: Any, writer_class: Any) -> Response:
        """Answer a request, streamed or whole."""
        chat_model = _named(body.model, models)
        planner = Planner(chat_model, settings.max_choices)
        plan = await run_in_threadpool(body.plan, planner, request.state.prefix_scope)
        generations = workers[chat_model.name].submit(plan.pairs)
        writer = writer_class(body, chat_model.name, plan.prompt_tokens)
        ignored = ignored_fields(body)
        headers = {"warning": f'299 danalab "ignored: {", ".join(ignored)}"'} if ignored else {}

        def end() -> None:
            """However the request ends."""
            generations.cancel()
            if record is not None:
                shown = [answer.shown for answer in generations.answers]
                record.write(request.url.path, body.model_dump(exclude_none=True, by_alias=True), shown)

        if body.stream:
            return EventStream(writer.chunks(generations), end, headers, named=writer_class.names_events)
        try:
            await while_connected(request, generations.finish())
        finally:
            end()
        return JsonAnswer(writer.whole(generations.answers, generations.tokens), headers=headers)

    def endpoint(kind: type[Body], writer: Any) -> Callable[..., Any]:
        async def answered(request: Request, body: kind) -> Response:  # pyright: ignore[reportInvalidTypeForm]
            return await answer(request, body, writer)

        return answered

    for path in ENDPOINTS.names():
        app.post(path)(endpoint(*ENDPOINTS.get(path)))

    @app.post("/tokenize")
    async def tokenize_route(body: TokenizeRequest) -> Response:
        return JsonAnswer(await run_in_threadpool(tokenize, _named(body.model, models), body))

    @app.post("/detokenize")
    async def detokenize_route(body: DetokenizeRequest) -> Response:
        return JsonAnswer(await run_in_threadpool(detokenize, _named(body.model, models), body))

    @app.get("/v1/models")
    async def model_cards() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(each) for each in models.values()]}

    @app.get("/v1/models/{name:path}")
    async def model_card(name: str) -> dict[str, Any]:
        return _model_card(_named(name, models))

    @app.get("/v1/runs")
    async def runs() -> Response:
        """Tell the page what is known of the models' runs."""
        return JsonAnswer({"runs": [{**_model_card(each), **each.card} for each in models.values()]})

    @app.get("/health")
    async def health() -> Response:
        stopped = [name for name, worker in workers.items() if not worker.is_alive]
        status = f"the engine of {', '.join(stopped)} has stopped" if stopped else "ok"
        content = {"status": status, "model": first.name, "step": first.step}
        return JsonAnswer(content, 503 if stopped else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(metrics_page(workers), media_type=METRICS_TYPE)


async def _page_file(name: str, request: Request) -> Response:
    response = await PAGE_FILES.get_response(name, request.scope)
    response.headers["cache-control"] = "no-cache"  # asks each time; an unchanged file is not sent again
    return response


def _model_card(chat_model: ChatModel) -> dict[str, Any]:
    return {
        "id": chat_model.name,
        "object": "model",
        "created": chat_model.created,
        "owned_by": "danalab",
        "max_model_len": chat_model.context,
        "step": chat_model.step,
        "chat": chat_model.is_chat,
    }


def _named(name: str | None, models: Mapping[str, ChatModel]) -> ChatModel:
    """The model of a request; the first where it names none."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        message = f"no model {name!r:.100}: this server has {', '.join(map(repr, models))}"
        raise RequestError(404, message, param="model", code="model_not_found")
    return models[name]


def _handle_errors(app: FastAPI) -> None:
    bodies: dict[str, type[Body]] = {path: ENDPOINTS.get(path)[0] for path in ENDPOINTS.names()}
    bodies |= {"/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest}

    @app.exception_handler(UserError)
    async def user(_: Request, error: UserError) -> Response:
        return _refusal(error if isinstance(error, RequestError) else RequestError(400, str(error)))

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type")
        if request.method == "POST" and JSON_TYPE.match(kind or "") is None:
            given = "missing" if kind is None else f"{kind!r:.100}"
            return _refusal(RequestError(415, f"the Content-Type header is {given}; it must be application/json"))
        known = list(bodies.get(request.url.path, Body).model_fields)
        return _refusal(RequestError.of(field_error(error.errors(), error.body, known)))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return _refusal(RequestError(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> Response:
        return _refusal(RequestError(500, "a fault of the server; its log has the reason", code="internal_error"))


JSON_TYPE = re.compile(r"application/(json|[\w.+-]+\+json)\s*(;|$)", re.IGNORECASE)
PROTECTED = ("/v1/", "/tokenize", "/detokenize", "/metrics", "/openapi.json")
BODY_SECONDS = 60  # from a request's head to the end of its body at most [s]
PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
"""The page may load and call nothing but this server, so text that a model writes cannot either."""


class Gate:
    """Refuses requests to another host, without an accepted key or over the size limit; a key has its prefixes."""

    def __init__(self, app: Any, settings: ServerSettings):
        self.app, self.limit, self.is_local = app, settings.max_body_kb * 1024, settings.is_local
        self._keys = [_digest(key) for key in settings.api_key]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            scope.setdefault("state", {})["prefix_scope"] = self._admit(scope["method"], scope["path"], headers)
        except RequestError as error:
            await _refusal(error)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the same head; the server leaves out the body

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *PAGE_HEADERS]}
            await send(message)

        await self.app(scope, _Limited(receive, self.limit), send_with_headers)

    def _admit(self, method: str, path: str, headers: dict[bytes, str]) -> str:
        host = headers.get(b"host", "")
        # Its name or address, without port and brackets: [::1]:8000 is ::1.
        match = re.fullmatch(r"(?:\[([^][]*)\]|([^:]*))(?::\d*)?", host)
        name = "" if match is None else (match[1] or match[2] or "").lower()
        if self.is_local and name not in LOCAL_HOSTS:  # another page's name for this machine: DNS rebinding
            must = (
                f"it must be one of {', '.join(LOCAL_HOSTS)}, or the server's --host must be an address of the network"
            )
            raise RequestError(400, f"the Host header is {host!r:.100}; {must}")
        key = self._key(headers.get(b"authorization", ""))
        preflight = method == "OPTIONS" and b"access-control-request-method" in headers
        if self._keys and key is None and path.startswith(PROTECTED) and not preflight:
            reason, more = "this server needs a key: send 'Authorization: Bearer KEY'", {"www-authenticate": "Bearer"}
            raise RequestError(401, reason, code="invalid_api_key", headers=more)
        length = headers.get(b"content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.limit:
            raise _too_large(self.limit)
        return "" if key is None else key.hex()

    def _key(self, authorization: str) -> bytes | None:
        """Digest of the accepted key of an Authorization header, or None. Takes the same time whichever key it is."""
        scheme, _, given = authorization.partition(" ")
        accepted = [key for key in self._keys if hmac.compare_digest(_digest(given.strip()), key)]
        return accepted[0] if accepted and scheme.lower() == "bearer" else None


class _Limited:
    """`receive` of a body that may be slow, and longer than it says."""

    def __init__(self, receive: Any, limit: int):
        self.receive, self.limit, self.read, self.more = receive, limit, 0, True
        self.end = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Any:
        # After the body, the next message is the disconnection, for which a stream waits as long as it takes.
        left = max(self.end - asyncio.get_running_loop().time(), 0) if self.more else None
        try:
            message = await asyncio.wait_for(self.receive(), left)
        except asyncio.TimeoutError:
            reason = f"the body is not complete after {BODY_SECONDS} s; it must be sent faster"
            raise HTTPException(408, reason, {"connection": "close"}) from None
        self.more = message.get("more_body", False)
        self.read += len(message.get("body", b""))
        if self.read > self.limit:
            error = _too_large(self.limit)
            raise HTTPException(error.status, str(error))  # FastAPI passes on no other class from here
        return message


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body is larger than {limit} bytes, the limit of this server", code="body_too_large")


def _refusal(error: RequestError) -> Response:
    return JsonAnswer(error_json(error), error.status, error.headers)


# ---- on the wire ----


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


class ConversationLog:
    """A file with one JSON object per line, line breaks escaped, for its owner alone; OSError: not writable."""

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


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8; half of a surrogate pair, which UTF-8 has no bytes for, becomes its escape."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")

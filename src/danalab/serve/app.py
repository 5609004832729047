"""The application: routes, checks in front of them, and errors in OpenAI's form.

POST /v1/chat/completions -> ChatCompletionRequest -> Planner -> EngineWorker -> ChatCompletionWriter -> EventStream
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from danalab import __version__
from danalab.errors import UserError
from danalab.serve.chat_completions import ChatCompletionRequest, ChatCompletionWriter
from danalab.serve.chat_model import ChatModel
from danalab.serve.completions import (
    CompletionRequest,
    CompletionWriter,
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from danalab.serve.errors import RequestError, error_json, validation_error
from danalab.serve.fields import Body, ignored_fields
from danalab.serve.planner import Planner
from danalab.serve.responses import ResponseRequest, ResponseWriter
from danalab.serve.security import Gate, LocalHosts
from danalab.serve.settings import ServerSettings
from danalab.serve.streaming import ConversationLog, EventStream, JsonAnswer, while_connected
from danalab.serve.worker import METRICS_TYPE, EngineWorker

PAGE = Path(__file__).parent / "page"

REQUESTS: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def create_app(
    chat_model: ChatModel,
    worker: EngineWorker,
    settings: ServerSettings,
    ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The server of one model.

    Args: ready: called when the server starts.
    Raises:
        OSError: the conversation log cannot be written.
    """
    record = None if settings.log_conversations is None else ConversationLog(settings.log_conversations)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        ready()
        yield
        await run_in_threadpool(worker.stop)
        if record is not None:
            record.close()

    app = FastAPI(title="danalab", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    _handle_errors(app)
    _add_routes(app, chat_model, worker, Planner(chat_model, settings.max_choices), record)
    _add_page(app)
    app.add_middleware(Gate, settings=settings)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origin), allow_methods=["*"], allow_headers=["*"]
        )
    if settings.is_local:
        app.add_middleware(LocalHosts)
    return app


def _add_routes(
    app: FastAPI, chat_model: ChatModel, worker: EngineWorker, planner: Planner, record: ConversationLog | None
) -> None:
    async def answer(request: Request, body: Any, writer_class: Any) -> Response:
        """From a request to its answer, streamed or whole."""
        _check_name(body.model, chat_model)
        plan = await run_in_threadpool(body.plan, planner, request.state.prefix_scope)
        generations = worker.submit(plan.pairs)
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
            return EventStream(writer.chunks(generations), end, headers, named=writer_class is ResponseWriter)
        try:
            await while_connected(request, generations.finish())
        finally:
            end()
        return JsonAnswer(writer.whole(generations.answers, generations.tokens), headers=headers)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
        return await answer(request, body, ChatCompletionWriter)

    @app.post("/v1/responses")
    async def responses(request: Request, body: ResponseRequest) -> Response:
        return await answer(request, body, ResponseWriter)

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        return await answer(request, body, CompletionWriter)

    @app.post("/tokenize")
    async def tokenize_route(body: TokenizeRequest) -> Response:
        _check_name(body.model, chat_model)
        return JsonAnswer(await run_in_threadpool(tokenize, chat_model, body))

    @app.post("/detokenize")
    async def detokenize_route(body: DetokenizeRequest) -> Response:
        _check_name(body.model, chat_model)
        return JsonAnswer(await run_in_threadpool(detokenize, chat_model, body))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(chat_model)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _check_name(name, chat_model)
        return _model_card(chat_model)

    @app.get("/health")
    async def health() -> Response:
        status = "ok" if worker.is_alive else "the engine has stopped"
        content = {"status": status, "model": chat_model.name, "step": chat_model.step}
        return JsonAnswer(content, 200 if worker.is_alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(worker.metrics.text(worker.statistics), media_type=METRICS_TYPE)


def _add_page(app: FastAPI) -> None:
    def route(file: Path) -> None:
        async def get(_: Request) -> Response:
            return FileResponse(file, headers={"cache-control": "no-cache"})

        app.router.add_route("/" if file.name == "index.html" else f"/{file.name}", get, include_in_schema=False)

    for file in PAGE.iterdir():
        route(file)


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


def _check_name(name: str | None, chat_model: ChatModel) -> None:
    if name is not None and name != chat_model.name:
        message = f"no model {name!r:.100}: this server has {chat_model.name!r}"
        raise RequestError(404, message, param="model", code="model_not_found")


def _handle_errors(app: FastAPI) -> None:
    def response(error: RequestError) -> JsonAnswer:
        return JsonAnswer(error_json(error), error.status, error.headers)

    @app.exception_handler(UserError)
    async def user(_: Request, error: UserError) -> Response:
        return response(error if isinstance(error, RequestError) else RequestError(400, str(error)))

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> Response:
        kind = REQUESTS.get(request.url.path)
        return response(validation_error(error.errors(), error.body, list(kind.model_fields) if kind else []))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return response(RequestError(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> Response:
        return response(RequestError(500, "a fault of the server; its log has the reason", code="internal_error"))

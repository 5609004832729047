"""A web page to talk to a model, and an API in OpenAI's schema."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Le

from danalab.cli._shared.model_flags import BASE_MODEL, ModelFlags
from danalab.errors import MissingExtra, UserError
from danalab.train.config.fields import Count, Natural

KEY_VARIABLE = "DANALAB_API_KEY"


@dataclass(frozen=True, kw_only=True)
class Flags(ModelFlags):
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of this machine's."""
    port: Annotated[Natural, Le(65535)] = 8000
    """Port to listen on; 0: a free one."""
    name: str | None = None
    """Name of the model in the API; default that of the folder."""
    api_key: tuple[str, ...] = ()
    """Keys, one of which a request must send as bearer token. DANALAB_API_KEY in the environment hides one from ps."""
    api_key_file: Path | None = None
    """File with a key a line."""
    cors_origin: tuple[str, ...] = ()
    """Origins whose pages may call the API from a browser, e.g. https://example.org."""
    log_conversations: Path | None = None
    """File to append prompts and answers to, a JSON object a line; default: they are not logged."""
    max_batch_size: Count = 32
    """Requests that are decoded together."""
    max_waiting: Natural = 256
    """Requests that wait for a slot; more get status 429."""
    max_connections: Count = 1000
    """Connections at the same time, at most; fewer where ulimit -n allows fewer open files."""
    max_choices: Count = 16
    """Answers to one request, at most (n)."""
    max_body_kb: Count = 1024
    """Size of a request at most [KiB]."""
    cache_tokens: Count | None = None
    """Capacity of the cache [tokens]; default: as the engine chooses."""
    batch_invariant: bool = False
    """The bits of an answer do not depend on other requests; slower. CPU and float32 only."""
    drain_seconds: Natural = 30
    """Time for running requests after SIGTERM or Ctrl-C [s]."""


def run(flags: Flags) -> None:
    """Serve a run's model: a chat page, and an API in OpenAI's schema under /v1."""
    keys = _keys(flags)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(str(error.name), "serve", "danalab serve") from None
    from danalab.chat.server import EngineSettings, ServerSettings, bind, serve
    from danalab.chat.server.connections import connection_limit
    from danalab.chat.server.settings import LOCAL_HOSTS

    connection_limit(flags.max_connections)  # raises before a model is loaded
    listener = bind(flags.host, flags.port)
    model = flags.open(flags.name)
    is_local = flags.host in LOCAL_HOSTS
    settings = ServerSettings(
        api_keys=keys,
        max_body_bytes=flags.max_body_kb * 1024,
        max_choices=flags.max_choices,
        cors_origins=flags.cors_origin,
        allowed_hosts=LOCAL_HOSTS if is_local else ("*",),
        conversation_log=flags.log_conversations,
    )
    engine = EngineSettings(
        max_batch_size=flags.max_batch_size,
        max_waiting=flags.max_waiting,
        cache_tokens=flags.cache_tokens,
        batch_invariant=flags.batch_invariant,
    )

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        step = "" if model.step is None else f" at step {model.step}"
        print(f"{model.name}{step}, context {model.context} tokens: page {address}, API {address}/v1", flush=True)
        if not model.is_chat:
            print(BASE_MODEL, flush=True)
        if not (is_local or keys):
            print("anyone who reaches this machine can use the server: --api-key asks for a key", flush=True)

    limits = {"drain_seconds": flags.drain_seconds, "max_connections": flags.max_connections}
    serve(model, listener, settings, engine, **limits, ready=ready)


def _keys(flags: Flags) -> tuple[str, ...]:
    keys = [*flags.api_key, *filter(None, [os.environ.get(KEY_VARIABLE)])]
    if flags.api_key_file is not None:
        lines = flags.api_key_file.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise UserError(f"--api-key-file {flags.api_key_file}: no key in it")
        keys += found
    if any(not key.strip() or not key.isascii() or not key.isprintable() for key in keys):
        raise UserError("--api-key: a key must be printable ASCII text and not empty")
    return tuple(keys)

"""A web page to talk to a model, and an API in OpenAI's schema."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from danalab.cli._shared.model_flags import BASE_MODEL, ModelFlags
from danalab.errors import MissingExtra, UserError
from danalab.serve.settings import ServerSettings

KEY_VARIABLE = "DANALAB_API_KEY"


@dataclass(frozen=True, kw_only=True)
class Flags(ServerSettings, ModelFlags):
    main: ClassVar = ("folder", "from_", "host", "port", "api_key", "name")

    name: str | None = None
    """Name of the model in the API; default that of the folder."""
    api_key_file: Path | None = None
    """File with a key a line."""


def run(flags: Flags) -> None:
    """Serve a run's model: a chat page, and an API in OpenAI's schema under /v1."""
    settings = replace(flags, api_key=_keys(flags))
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(str(error.name), "serve", "danalab serve") from None
    from danalab.serve import bind, serve

    listener = bind(settings)
    model = flags.open(flags.name)

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        step = "" if model.step is None else f" at step {model.step}"
        print(f"{model.name}{step}, context {model.context} tokens: page {address}, API {address}/v1", flush=True)
        if not model.is_chat:
            print(BASE_MODEL, flush=True)
        if not (settings.is_local or settings.api_key):
            print("anyone who reaches this machine can use the server: --api-key asks for a key", flush=True)

    serve(model, listener, settings, ready)


def _keys(flags: Flags) -> tuple[str, ...]:
    keys = [*flags.api_key, *filter(None, [os.environ.get(KEY_VARIABLE)])]
    if flags.api_key_file is not None:
        lines = flags.api_key_file.read_text(encoding="utf-8", errors="replace").splitlines()
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:
            raise UserError(f"--api-key-file {flags.api_key_file}: no key in it")
        keys += in_file
    if any(not key.strip() or not key.isascii() or not key.isprintable() for key in keys):
        raise UserError("--api-key: a key must be printable ASCII text and not empty")
    return tuple(keys)

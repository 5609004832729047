"""A web page to talk to a model, and an API in OpenAI's schema."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from danalab.cli._shared.model_flags import BASE_MODEL, ModelFlags, stages_of
from danalab.errors import UserError, import_extra
from danalab.serve.settings import ServerSettings
from danalab.train.config.flags import Positional, flag, setting

if TYPE_CHECKING:
    from danalab.serve.chat_model import ChatModel


@dataclass(frozen=True, kw_only=True)
class Flags(ServerSettings, ModelFlags):
    main: ClassVar = ("run", "from_", "host", "port", "api_key", "name")

    run: Positional[tuple[Path, ...]] = setting(  # pyright: ignore[reportIncompatibleVariableOverride]
        (), "Run folders, finished or not; a speedrun folder serves all of its stages, its last first."
    )  # pyright: ignore[reportIncompatibleVariableOverride]
    name: str | None = setting(
        None, "Name of the model in the API; default that of the folder. Only for one model."
    )
    api_key_file: Path | None = setting(None, "API keys, one per line.")


def run(flags: Flags) -> None:
    """Serve runs' models: a chat page, and an API in OpenAI's schema under /v1."""
    settings = replace(flags, api_key=_keys(flags))
    for module in ("starlette", "uvicorn"):  # before a model is read
        import_extra(module, "danalab serve")
    from danalab.serve.server import bind, serve

    listener = bind(settings)
    models = open_models(flags)

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        names = "; ".join(
            f"{m.name}{'' if m.step is None else f' at step {m.step}'}, context {m.context} tokens"
            for m in models
        )
        print(f"{names}: page {address}, API {address}/v1", flush=True)
        for model in models:
            if not model.is_chat:
                print(f"{model.name}: {BASE_MODEL}", flush=True)
        if not (settings.is_local or settings.api_key):
            print("anyone on the network can use this server; set --api-key to require a key", flush=True)

    serve(models, listener, settings, ready)


def open_models(flags: Flags) -> "list[ChatModel]":
    """The models of the flags, of different names; UserError: none, one twice, or a flag that is about one model."""
    folders = [stage for folder in flags.run for stage in reversed(stages_of(folder))]
    if len(folders) < 2:
        one = {name: getattr(flags, name) for name in ("from_", "step", "tokenizer")}
        return [ModelFlags(run=folders[0] if folders else None, **one).open(flags.name)]
    for name in ("from_", "step", "name"):
        if getattr(flags, name) is not None:
            raise UserError(f"{flag(name)}: is about one model, and {len(folders)} run folders are given")
    named = dict[str, Path]()
    for folder in folders:
        name = "/".join(folder.resolve().parts[-2:])
        if name in named:
            raise UserError(f"two run folders would be called {name}; give each once, or rename one")
        named[name] = folder
    return [ModelFlags(run=folder, tokenizer=flags.tokenizer).open(name) for name, folder in named.items()]


def _keys(flags: Flags) -> tuple[str, ...]:
    keys = [*flags.api_key, *filter(None, [os.environ.get("DANALAB_API_KEY")])]
    if flags.api_key_file is not None:
        lines = flags.api_key_file.read_text(encoding="utf-8", errors="replace").splitlines()
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:
            raise UserError(f"--api-key-file {flags.api_key_file}: no key in it")
        keys += in_file
    if any(not key.strip() or not key.isascii() or not key.isprintable() for key in keys):
        raise UserError("--api-key: a key must be printable ASCII text and not empty")
    return tuple(keys)


VERBS = {"serve": (Flags, run)}

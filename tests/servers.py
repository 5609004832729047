"""Real servers for tests: uvicorn in a thread, on a free port of this machine."""

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import httpx
import torch

from danalab.chat.formats import PlainFormat
from danalab.chat.marks import ChatFormat
from danalab.data.tokenizers import load_tokenizer
from danalab.inference import Engine, Request, TokenEvent
from danalab.models import ModelConfig, build_model
from danalab.serve.app import create_app
from danalab.serve.chat_model import ChatModel
from danalab.serve.server import Server, bind, make_worker
from danalab.serve.settings import ServerSettings
from danalab.serve.worker import EngineWorker


def tiny_model(seq_len: int = 512, *, base: bool = False) -> ChatModel:
    """A random model of bytes; its answers are noise, but always the same for the same seed."""
    tokenizer = load_tokenizer("bytes")
    torch.manual_seed(0)
    config = ModelConfig(
        arch="qwen3", d_model=32, n_layers=2, n_heads=2, head_dim=16, mlp_dim=64,
        vocab_size=tokenizer.vocab_size, seq_len=seq_len,
    )  # fmt: skip
    chosen = PlainFormat(tokenizer) if base else ChatFormat(tokenizer)
    return ChatModel("tiny", build_model(config).eval(), tokenizer, chosen)


class ScriptedEngine:
    """Stands in for the engine: writes what `script` gives for a question, or its rest, a byte or a mark a step."""

    def __init__(
        self, model: ChatModel, script: Callable[[str], str], seconds: float = 0.0, max_requests: int = 300
    ):
        """Args: seconds: time of a step."""
        self.model, self.script, self.seconds, self.max_requests = model, script, seconds, max_requests
        self.running: dict[int, list[int]] = {}
        self.cancelled: list[int] = []
        self.prompts: list[str] = []
        self._next = 0

    generate = Engine.generate

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def submit(self, request: Request) -> int:
        prompt = self.model.tokenizer.decode(request.prompt)
        question = prompt.rpartition("<|user_start|>")[2].partition("<|user_end|>")[0]
        begun = prompt.rpartition("<|assistant_start|>")[2]
        self.prompts.append(prompt)
        tokenizer = self.model.tokenizer
        text: list[int] = []
        for piece in re.split(r"(<\|\w+\|>)", self.script(question).removeprefix(begun)):
            text += [tokenizer.specials[piece]] if piece in tokenizer.specials else tokenizer.encode(piece)
        self._next += 1
        self.running[self._next] = [*text[: request.parameters.max_tokens], self.model.tokenizer.eos_id]
        return self._next

    def step(self) -> list[TokenEvent]:
        time.sleep(self.seconds)
        events = []
        for number, tokens in list(self.running.items()):
            token = tokens.pop(0)
            likely = [(token, math.log(0.5)), (ord("?"), math.log(0.25))]
            events.append(TokenEvent(number, token, math.log(0.5), likely, None if tokens else "stop"))
            if not tokens:
                del self.running[number]
        return events

    def force(self, number: int, tokens: Sequence[int]) -> bool:
        return True

    def cancel(self, number: int) -> bool:
        self.cancelled.append(number)
        return self.running.pop(number, None) is not None


@dataclass
class RunningServer:
    """A server that listens."""

    url: str
    worker: EngineWorker
    model: ChatModel
    settings: ServerSettings

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False, verify=False)


@contextlib.contextmanager
def running_server(
    model: ChatModel,
    settings: ServerSettings | None = None,
    engine: ScriptedEngine | None = None,
    others: Sequence[tuple[ChatModel, ScriptedEngine]] = (),
    **limits: int,
) -> Iterator[RunningServer]:
    """A server that stops at the end of the block, after its running requests; `others`: further models."""
    settings = replace(
        settings or ServerSettings(), port=0, **{"max_batch_size": 8, "max_waiting": 300, **limits}
    )

    def worker_of(engine: ScriptedEngine) -> EngineWorker:
        return EngineWorker(engine, max_requests=engine.max_requests)  # pyright: ignore[reportArgumentType]

    worker = make_worker(model, settings) if engine is None else worker_of(engine)
    listener = bind(settings)
    served = [(model, worker), *((each, worker_of(engine)) for each, engine in others)]
    process = Server(create_app(served, settings), settings, [worker for _, worker in served])
    thread = threading.Thread(target=process.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not process.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = listener.getsockname()[1]
    try:
        yield RunningServer(f"http://127.0.0.1:{port}", worker, model, settings)
    finally:
        process.should_exit = True
        thread.join(100)
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when the condition holds; fails if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.01)

"""`danalab eval --lm-eval`: evaluates a run's model on tasks of EleutherAI's evaluation harness, by the harness.

Source: Gao et al. 2024, the language model evaluation harness; its package is lm-eval.
MissingExtra, at the import of this module: it is not installed.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from danalab.data.tokenizers import Tokenizer
from danalab.errors import MissingExtra, UserError, first_line, nearest
from danalab.files import read_yaml
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models.decoder import Decoder
from danalab.train.run.open import open_run
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import lm_eval
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError as error:
    raise MissingExtra("lm_eval", "--lm-eval") from error

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HarnessResult:
    """The result."""

    step: int
    tasks: dict[str, dict[str, Any]]
    """Task -> metric (such as "acc") -> value; standard errors likewise."""
    samples: dict[str, int]
    """Task -> number of documents."""
    num_fewshot: dict[str, int]
    """Task -> examples before each question."""
    version: str
    """Version of the harness."""


def evaluate_tasks(
    folder: str | Path,
    tasks: list[str],
    *,
    step: int | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    chat: "Callable[[Tokenizer], ConversationFormat] | None" = None,
) -> HarnessResult:
    """Evaluate a checkpoint on tasks, in the number format of its training.

    Args:
        tasks: names of the harness, or paths of YAML files that define a task.
        num_fewshot: examples before each question; default the task's.
        limit: only the first documents of each task.
        chat: makes the format of conversations in which the tasks are asked; default plain text.
    """
    for flag, value, low in (("--num-fewshot", num_fewshot, 0), ("--limit", limit, 1), ("--batch-size", batch_size, 1)):
        if value is not None and value < low:
            raise UserError(f"{flag} {value}: must be {'at least 1' if low else '0 or more'}")
    run = open_run(folder)
    tokenizer = run.tokenizer
    names, manager = _find(tasks)
    config, chosen = run.config["config"], choose_device(device)
    loaded = run.load_model(step, chosen)
    autocast = autocast_context(autocast_dtype(run.config["config"]["dtype"], chosen), chosen)
    model = HarnessModel(
        loaded.model,
        tokenizer,
        batch_size=batch_size or config["batch_size"],
        device=chosen,
        autocast=autocast,
        chat=None if chat is None else chat(tokenizer),
    )
    try:
        evaluate: Any = lm_eval.simple_evaluate  # its decorator hides its arguments from type checkers
        output = evaluate(
            model=model,
            tasks=names,
            task_manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            apply_chat_template=chat is not None,
            bootstrap_iters=1000,
            log_samples=False,
        )
    except UserError:
        raise
    except (OSError, ValueError, ImportError) as error:  # mostly data that can be neither read nor downloaded
        raise UserError(f"--lm-eval {','.join(tasks)}: the harness says: {first_line(error)}") from error
    results = {task: _plain(values) for task, values in output["results"].items()}
    samples = {task: int(counts["effective"]) for task, counts in output.get("n-samples", {}).items()}
    shots = {task: int(count) for task, count in output.get("n-shot", {}).items()}
    return HarnessResult(loaded.step, results, samples, shots, lm_eval.__version__)


def _find(tasks: list[str]) -> tuple[list[str], Any]:
    if not tasks:
        raise UserError("--lm-eval: name at least one task, or the path of a YAML file that defines one")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    files = {task: Path(task) for task in tasks if task.endswith((".yaml", ".yml"))}
    for file in files.values():
        if not file.is_file():
            raise UserError(f"--lm-eval {file}: there is no such file")
    folders: list[str | Path] = [*sorted({file.parent.resolve() for file in files.values()})]
    manager = TaskManager(include_path=folders or None, include_defaults=len(files) < len(tasks))
    names = [_name_in(files[task]) if task in files else task for task in tasks]
    for name in names:
        if name not in manager.all_tasks:
            raise UserError(f"--lm-eval {name}: no such task{nearest(name, manager.all_tasks)}; `lm-eval ls tasks` "
                            "lists them, and a path of a YAML file can replace a name")  # fmt: skip
    return names, manager


def _name_in(file: Path) -> str:
    try:
        described = read_yaml(file, own_tags=True)
    except UserError as error:
        raise UserError(f"--lm-eval {error}") from error
    name = described.get("task") if isinstance(described, dict) else None
    if not isinstance(name, str):
        raise UserError(f"--lm-eval {file}: defines no task (its YAML has no 'task: NAME')")
    return name


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers by metric, without the name of the default filter ("none")."""
    return {
        key.removesuffix(",none"): value
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


# ---- the model as the harness asks it; shapes: B sequences, L length, D model dimension, V vocabulary ----

DEFAULT_TOKENS = 256
"""Tokens to generate where a task does not say, as in the harness."""

Scored = tuple[Any, Sequence[int], Sequence[int]]
"""(key, tokens of the context, tokens of the continuation)."""


class ConversationFormat(Protocol):
    """The format of conversations of a model."""

    @property
    def stop_tokens(self) -> Sequence[int]:
        """Ids that end an answer."""
        ...

    def render(self, history: Sequence[dict[str, Any]], *, opens_answer: bool) -> str:
        """Text of a conversation for `encode`. `opens_answer`: the assistant speaks next."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text, or of a part of one."""
        ...


class HarnessModel(TemplateLM):
    """A model with its tokenizer. A text follows the end-of-document token, as documents do in training.

    Questions are asked in the format `chat`; None: as plain text. `autocast` makes the context of forward computations.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]],
        chat: ConversationFormat | None = None,
    ):
        super().__init__()
        self._chat = chat
        self._model, self._tokens, self._device, self._autocast = model.eval(), tokenizer, device, autocast
        self.batch_size = batch_size
        self.max_length = model.config.seq_len

    @property
    def eot_token_id(self) -> int:
        """The token between documents."""
        return self._tokens.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        return self._tokens.encode(string) if self._chat is None else self._chat.encode(string)

    # ---- conversations ----

    @property
    def tokenizer_name(self) -> str:
        """Name in the harness's cache of requests."""
        return self._tokens.fingerprint

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Name in the harness's records."""
        return "" if self._chat is None else type(self._chat).__name__

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation."""
        assert self._chat is not None
        return self._chat.render(chat_history, opens_answer=add_generation_prompt)

    # ---- likelihood ----

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text [nats], in windows that share no target."""
        windows: list[Scored] = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((number, *make_disjoint_window(pair)))
        totals = [0.0] * len(requests)
        for (number, *_), (total, _) in zip(windows, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += total
        return totals

    def _loglikelihood_tokens(self, requests: Any, **unused: Any) -> list[tuple[float, bool]]:
        """(log-probability of the continuation [nats], whether greedy decoding gives it) of each request."""
        scores: dict[int, tuple[float, bool]] = {}
        # Long ones first: a lack of memory shows at once.
        order = sorted(range(len(requests)), key=lambda at: -len(requests[at][1]) - len(requests[at][2]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            scores.update(zip(batch, self._score([requests[at] for at in batch]), strict=True))
        return [scores[at] for at in range(len(requests))]

    @torch.no_grad()
    def _score(self, batch: Sequence[Scored]) -> Iterator[tuple[float, bool]]:
        for _, _, continuation in batch:
            if len(continuation) > self.max_length:
                raise UserError(f"a continuation of {len(continuation)} tokens is longer than the model's context, "
                                f"{self.max_length}; this model cannot do the task")  # fmt: skip
        rows = [[*context, *continuation][-self.max_length - 1 :] for _, context, continuation in batch]
        width = max(len(row) for row in rows) - 1
        # Padding comes last, so it does not affect a causal model.
        tokens_BL = torch.zeros(len(rows), width, dtype=torch.int64)
        for row, ids in enumerate(rows):
            tokens_BL[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        with self._autocast():
            hidden_BLD = self._model.hidden(tokens_BL.to(self._device))
            for row, (ids, (_, _, continuation)) in enumerate(zip(rows, batch, strict=True)):
                end, count = len(ids) - 1, len(continuation)
                yield self._likelihood(hidden_BLD[row, end - count : end], continuation)

    def _likelihood(self, hidden_LD: Tensor, continuation: Sequence[int]) -> tuple[float, bool]:
        if not continuation:
            return 0.0, True
        targets = torch.tensor(continuation, device=self._device)
        log_p_LV = (hidden_LD @ self._model.head_weight.T).float().log_softmax(-1)
        total = log_p_LV.gather(-1, targets[:, None]).double().sum()
        return float(total), bool((log_p_LV.argmax(-1) == targets).all())

    # ---- generation ----

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context, up to the first of the task's stop words."""
        engine = Engine(self._model, self._tokens, max_batch_size=self.batch_size)
        wanted = [self._request(*request.args) for request in requests]
        with self._autocast():
            completions = engine.generate(wanted)
        texts = []
        for request, completion in zip(wanted, completions, strict=True):
            stream = engine.text_stream(request.parameters)
            texts.append("".join(map(stream.feed, completion.tokens)) + stream.finish())
        return texts

    def _request(self, context: str, settings: dict[str, Any]) -> Request:
        until = settings.get("until") or []
        stops = [word for word in ([until] if isinstance(until, str) else until) if word]
        ids = self.tok_encode(context) or [self.prefix_token_id]
        wanted = int(settings.get("max_gen_toks", DEFAULT_TOKENS))
        # Where both do not fit: at most half of the context for the answer, and the end of the question.
        room = min(wanted, max(self.max_length - len(ids), self.max_length // 2))
        if room < wanted:
            log.debug("%d tokens instead of %d: the model's context is %d", room, wanted, self.max_length)
        temperature = float(settings.get("temperature", 0.0 if not settings.get("do_sample") else 1.0))
        parameters = SamplingParameters(
            max_tokens=room,
            temperature=temperature if settings.get("do_sample", temperature > 0) else 0.0,
            top_k=int(settings.get("top_k", 0)),
            top_p=float(settings.get("top_p", 1.0)),
            seed=0,
            stop=stops,
            stop_tokens=() if self._chat is None else self._chat.stop_tokens,
        )
        return Request(ids[-(self.max_length - room) :], parameters)

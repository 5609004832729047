"""The model interface of lm-eval's harness: log-likelihoods of continuations and of whole texts, and generation.

Imports lm_eval; `lm_eval.py` imports this when it is needed. Shapes: B sequences, L length, D model
dimension, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)

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

"""POST /v1/completions: texts that continue prompts. POST /tokenize and /detokenize: text to token ids and back."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from danalab.chat.message_fields import Body
from danalab.serve.chat_model import ChatModel
from danalab.serve.fields import Choices, Count, JsonObject, Unsupported, finite, only
from danalab.serve.planner import EngineWork, Planner
from danalab.serve.readers import Answer, TokenText
from danalab.serve.worker import Generations

DEFAULT_TOKENS = 16  # OpenAI's default of `max_tokens`

_NO_ECHO = (
    ": this server computes no log-probabilities of a prompt; lm-eval's tasks: danalab eval --run RUN --lm-eval TASK"
)
Ids = Annotated[list[int], Len(1)]


class CompletionRequest(Choices):
    """Prompts to continue, as texts or token ids."""

    prompt: str | Ids | Annotated[list[str], Len(1)] | Annotated[list[Ids], Len(1)]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Ge(0), Le(5)] | None = None
    echo: Annotated[bool | None, only(False, reason=_NO_ECHO)] = None
    best_of: Annotated[int | None, only(1)] = None
    suffix: Unsupported = None

    def plan(self, planner: Planner, scope: str) -> EngineWork:
        """The work of the engine."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        prompts: list[Any] = [self.prompt] if single else list(self.prompt)
        sampling = self.sampling(self.max_tokens or DEFAULT_TOKENS, self.logprobs)
        return planner.completions(prompts, sampling, self.n or 1, scope)


class ChoiceWriter:
    """Answers and chunks of a request with choices, as JSON objects."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    def __init__(self, request: Any, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens = request, prompt_tokens
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._lengths: dict[int, int] = {}  # characters sent so far of each choice

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [self._whole_choice(index, each) for index, each in enumerate(answers)]
        return {**self._head, "object": self.whole_kind, "choices": choices, "usage": self._usage(generated)}

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The chunks of a stream; the last one has the counts of tokens where they are asked for."""
        head, no_usage = {**self._head, "object": self.chunk_kind}, {}
        if self._request.includes_usage:
            no_usage = {"usage": None}
        async for choice in self._pieces(generations):
            yield {**head, "choices": [choice], **no_usage}
        if no_usage:
            yield {**head, "choices": [], "usage": self._usage(generations.tokens)}

    def _usage(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}

    def _whole_choice(self, index: int, answer: Answer) -> JsonObject:
        return self._choice(index, answer.text, answer.tokens, answer.finish_reason)

    async def _pieces(self, generations: Generations) -> AsyncIterator[JsonObject]:
        async for index, delta in generations:
            if delta.text or delta.tokens or delta.finish_reason:
                yield self._choice(index, delta.text, delta.tokens, delta.finish_reason)

    def _choice(self, index: int, text: str, tokens: Sequence[TokenText], reason: str | None) -> JsonObject:
        logprobs = None if self._request.logprobs is None else self._logprobs(index, tokens)
        self._lengths[index] = self._lengths.get(index, 0) + len(text)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, index: int, tokens: Sequence[TokenText]) -> JsonObject:
        texts = [each.content.decode(errors="replace") for each in tokens]
        offset = self._lengths.get(index, 0)
        return {
            "tokens": texts,
            "token_logprobs": [finite(each.logprob) for each in tokens],
            "top_logprobs": [
                {content.decode(errors="replace"): finite(logprob) for _, content, logprob in each.top}
                for each in tokens
            ],
            "text_offset": [offset + sum(map(len, texts[:place])) for place in range(len(texts))],
        }


class TokenizeRequest(Body):
    text: str
    model: str | None = None


class DetokenizeRequest(Body):
    tokens: list[int]
    model: str | None = None


def tokenize(chat_model: ChatModel, request: TokenizeRequest) -> JsonObject:
    """The ids of a text."""
    ids = chat_model.ids(request.text, "text")
    return {"tokens": ids, "count": len(ids), "max_model_len": chat_model.context}


def detokenize(chat_model: ChatModel, request: DetokenizeRequest) -> JsonObject:
    """The text of ids; bytes that are not UTF-8 become U+FFFD."""
    return {"text": chat_model.tokenizer.decode(chat_model.ids(request.tokens, "tokens"))}

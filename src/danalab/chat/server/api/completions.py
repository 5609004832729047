"""POST /v1/completions: texts that continue prompts."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from danalab.chat.assistant.deltas import Answer, TokenText
from danalab.chat.server.api.fields import Choices, Count, JsonObject, Unsupported, finite, only
from danalab.chat.server.worker import Generations

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens`."""

Ids = Annotated[list[int], Len(1)]


class CompletionRequest(Choices):
    """Prompts to continue, as texts or token ids."""

    prompt: str | Ids | Annotated[list[str], Len(1)] | Annotated[list[Ids], Len(1)]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Ge(0), Le(5)] | None = None
    echo: Annotated[bool | None, only(False)] = None
    best_of: Annotated[int | None, only(1)] = None
    suffix: Unsupported = None

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a text or ids."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if single else list(self.prompt)


class CompletionWriter:
    """The answer and the chunks of one request, as JSON objects."""

    def __init__(self, request: CompletionRequest, model: str, prompt_tokens: int):
        self._request, self._prompt_tokens = request, prompt_tokens
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._lengths: dict[int, int] = {}
        """Characters sent so far of each choice."""

    def whole(self, answers: Sequence[Answer], generated: int) -> JsonObject:
        """The answer without streaming."""
        choices = [
            self._choice(index, each.text, each.tokens, each.finish_reason) for index, each in enumerate(answers)
        ]
        return {**self._head, "choices": choices, "usage": self._usage(generated)}

    async def chunks(self, generations: Generations) -> AsyncIterator[JsonObject]:
        """The chunks of a stream."""
        usage = {"usage": None} if self._request.includes_usage else {}
        async for index, delta in generations:
            if delta.text or delta.tokens or delta.finish_reason:
                choice = self._choice(index, delta.text, delta.tokens, delta.finish_reason)
                yield {**self._head, "choices": [choice], **usage}
        if usage:
            yield {**self._head, "choices": [], "usage": self._usage(generations.tokens)}

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

    def _usage(self, generated: int) -> JsonObject:
        total = self._prompt_tokens + generated
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": generated, "total_tokens": total}

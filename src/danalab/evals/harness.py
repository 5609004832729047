"""Formats of conversations for lm-eval's harness, which renders to text first and encodes it later.

Our special tokens are their spelling between null characters, so that no text of a task becomes one.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from danalab.chat.conversations import SPECIAL_TOKENS, ChatFormat, Conversation
from danalab.chat.formats import TemplateFormat, format_of
from danalab.data.tokenizers import Tokenizer

_MARK = re.compile("\0(" + "|".join(map(re.escape, SPECIAL_TOKENS.values())) + ")\0")


class HarnessChat:
    """A `ConversationFormat` of `danalab.train.evaluation.lm_eval_adapter`."""

    def __init__(self, tokenizer: Tokenizer):
        """Raises UserError if the tokenizer lacks special tokens."""
        self._tokenizer, self._chat = tokenizer, ChatFormat(tokenizer)
        self.stop_tokens: Sequence[int] = self._chat.stop_tokens

    def render(self, history: Sequence[dict[str, Any]], *, opens_answer: bool) -> str:
        """Text of a conversation; see `HarnessModel.apply_chat_template`."""
        pieces = [_mark("bos")]
        answered = True
        for question, answer in _conversation(history).turns():
            pieces += [_mark("user_start"), question, _mark("user_end")]
            answered = answer is not None
            if answer is not None:
                pieces += [_mark("assistant_start"), answer.text, _mark("assistant_end")]
        if not answered and opens_answer:
            pieces.append(_mark("assistant_start"))
        elif answered and not opens_answer:
            pieces.pop()  # the answer goes on
        return "".join(pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text, or of a part of one."""
        parts = _MARK.split(text)  # text, special, text, special, ..., text
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [self._tokenizer.specials[part]] if number % 2 else self._tokenizer.encode(part)
        return ids


class HarnessTemplate:
    """A `ConversationFormat` of `danalab.train.evaluation.lm_eval_adapter`, by the chat template of a model."""

    def __init__(self, template: TemplateFormat):
        self._template = template
        self.stop_tokens: Sequence[int] = template.stop_tokens

    def render(self, history: Sequence[dict[str, Any]], *, opens_answer: bool) -> str:
        """Text of a conversation: an answer at its end is continued, after a question the assistant speaks."""
        return self._template.render_text(_conversation(history))

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text, or of a part of one."""
        return self._template.encode(text)


def harness_format(run: str | Path, tokenizer: Tokenizer) -> HarnessChat | HarnessTemplate:
    """The format of a run's conversations: its own template where it has one.

    Raises:
        UserError: a malformed template, or no template and no special tokens of ours.
    """
    own = format_of(Path(run), tokenizer)
    return HarnessTemplate(own) if isinstance(own, TemplateFormat) else HarnessChat(tokenizer)


def _conversation(history: Sequence[dict[str, Any]]) -> Conversation:
    clean = [{"role": m["role"], "content": str(m["content"]).replace("\0", "")} for m in history]
    return Conversation.of({"messages": clean})


def _mark(name: str) -> str:
    return f"\0{SPECIAL_TOKENS[name]}\0"

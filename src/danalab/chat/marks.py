"""Conversations as tokens, with marks: the mask of what the model learns, and the calculations that it calls for.

    ids   bos user_start question user_end assistant_start answer assistant_end user_start ...
    mask   0      0          0        0           0           1         1           0

    text  It is <<12*7=84>> 84.
    ids   It is  python_start 12*7 python_end  output_start 84 output_end  84.
    mask    1         1        1       1            0        0      0       1

The mask is 1 on what the assistant writes, and 0 on results, which are given to it: `CallFollower` calculates when the
model closes a call, and the program forces the result into the answer. Text that spells a special token is encoded as
characters, so nobody can add a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from danalab.chat.calculator import call_tool
from danalab.chat.messages import CALCULATION, Conversation, Message
from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.inference.engine import Engine

SPECIAL_TOKENS: dict[str, str] = {
    "bos": EOS,
    **{spelling.strip("<|>"): spelling for spelling in CHAT_SPECIALS},
}
"""Name -> spelling: bos, user_start, user_end, assistant_start, assistant_end, python_start, python_end, output_start,
output_end. bos is the token that also separates documents, so a conversation starts as every document does."""
CHAT_STAGES = ("mid", "sft", "rl")
"""Stages of training that teach them to a model; its runs are asked as a chat where nothing else is said."""

Piece = tuple["str | int", int]
"""A text or the id of a mark, and whether the assistant says it."""


class Rendered(NamedTuple):
    """A conversation as tokens."""

    ids: list[int]
    mask: list[int]
    """1 where the assistant speaks, as many as ids."""


class ChatFormat:
    """The format of conversations in the tokens of one tokenizer.

    Attributes:
        bos, user_start, ...: ids of the special tokens by name.
        n_ids: ids from here on (padding of the vocabulary) are never part of a conversation.
        spellings: mark of a calculation -> what the text shows in its place.
    """

    stop_texts = ()

    def __init__(self, tokenizer: Tokenizer):
        """Raises UserError if the tokenizer lacks special tokens; `extend_tokenizer` adds them."""
        if missing := missing_specials(tokenizer):
            raise UserError(
                f"tokenizer {tokenizer.name}: no special token {missing[0]}; danalab sft adds it to a run"
            )
        self.tokenizer = tokenizer
        marks = [tokenizer.specials[spelling] for spelling in SPECIAL_TOKENS.values()]
        self.bos, self.user_start, self.user_end, self.assistant_start, self.assistant_end = marks[:5]
        self.python_start, self.python_end, self.output_start, self.output_end = marks[5:]
        self.n_ids = max(tokenizer.n_tokens, 1 + max(tokenizer.specials.values()))
        self.spellings = {self.python_start: "<<", self.output_start: "=", self.output_end: ">>"}
        self._specials = frozenset(tokenizer.specials.values())

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end the assistant's message: assistant_end, and bos, which begins another document."""
        return self.assistant_end, self.bos

    def render(self, conversation: Conversation) -> Rendered:
        """The ids of a conversation with the mask of what the assistant says."""
        return self.render_all([conversation])[0]

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks: assistant_start, or its open message at the end."""
        ids = self.render(conversation).ids
        return ids[:-1] if conversation.is_open else [*ids, self.assistant_start]

    def render_all(self, conversations: Sequence[Conversation]) -> list[Rendered]:
        """`render` of each, encoded together, which is faster."""
        rows = [list(self._pieces(conversation)) for conversation in conversations]
        texts = [piece for row in rows for piece, _ in row if isinstance(piece, str)]
        encoded = iter(self.tokenizer.encode_batch(texts))
        rendered = []
        for row in rows:
            ids: list[int] = []
            mask: list[int] = []
            for piece, said in row:
                found = [piece] if isinstance(piece, int) else next(encoded)
                ids += found
                mask += [said] * len(found)
            rendered.append(Rendered(ids, mask))
        return rendered

    def _pieces(self, conversation: Conversation) -> Iterator[Piece]:
        yield self.bos, 0
        for question, answer in conversation.turns():
            if question is not None:
                yield from ((self.user_start, 0), (question, 0), (self.user_end, 0))
            if answer is not None:
                yield self.assistant_start, 0
                yield from self._answer(answer, int(answer.learned))
                yield self.assistant_end, int(answer.learned)

    def _answer(self, message: Message, said: int) -> Iterator[Piece]:
        for part in message.parts:
            if part.kind == "call":
                yield from self._call(part.text, said)
            elif part.kind == "result":
                yield from self._result(part.text)
            else:
                between = CALCULATION.split(part.text)  # text, expression, result, text, ..., text
                yield between[0], said
                for at in range(1, len(between), 3):
                    yield from self._call(between[at], said)
                    yield from self._result(between[at + 1])
                    yield between[at + 2], said

    def _call(self, text: str, said: int) -> tuple[Piece, ...]:
        return (self.python_start, said), (text, said), (self.python_end, said)

    def _result(self, text: str) -> tuple[Piece, ...]:
        return (self.output_start, 0), (text, 0), (self.output_end, 0)

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in ids that a model produced after `render_prompt`; None where it said nothing.

        Reads to the first stop token and never fails: marks out of place stay as text, other specials are left out.
        """
        data = bytearray()
        for id_ in ids:
            if id_ in self.stop_tokens:
                break
            if id_ in self.spellings:
                data += self.spellings[id_].encode()
            elif id_ not in self._specials and 0 <= id_ < self.n_ids:
                data += self.tokenizer.decode_bytes([id_])
        text = data.decode("utf-8", errors="replace")
        return Message.of("assistant", text) if text.strip() else None


def render_conversation(tokenizer: Tokenizer, conversation: Conversation) -> Rendered:
    """The ids of a conversation, and what the assistant says; UserError: the tokenizer lacks special tokens."""
    return ChatFormat(tokenizer).render(conversation)


def missing_specials(tokenizer: Tokenizer) -> list[str]:
    """The spellings that a tokenizer does not know, in order."""
    return [spelling for spelling in SPECIAL_TOKENS.values() if spelling not in tokenizer.specials]


class CallFollower:
    """Follows the tokens of one answer and carries out its calculations."""

    def __init__(self, chat: ChatFormat):
        self._chat = chat
        self._inside: list[int] | None = None
        """Tokens of the call that is open."""

    def feed(self, token: int) -> str | None:
        """Take a token that does not end the answer; where it closes a call, the result to put into the answer."""
        if token == self._chat.python_start:
            self._inside = []
        elif token == self._chat.python_end and self._inside is not None:
            expression, self._inside = self._chat.tokenizer.decode(self._inside), None
            return call_tool(expression)
        elif self._inside is not None:
            self._inside.append(token)
        return None

    def force(self, engine: Engine, number: int, result: str) -> list[int]:
        """Put a result into the answer that a request writes; its tokens, none where the context has no space."""
        tokens = [self._chat.output_start, *self._chat.tokenizer.encode(result), self._chat.output_end]
        return tokens if engine.force(number, tokens) else []

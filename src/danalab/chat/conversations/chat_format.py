"""Conversations as token ids, and the ids that a model answers as a message.

    ids   bos user_start question user_end assistant_start answer assistant_end
    mask   0      0          0        0           0           1         1

The mask is 1 on what the assistant writes: its text, its tool calls with their marks, and the end of its message; it is
0 on the output of tools, which is given to it. User's text that spells a special token is encoded as characters.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from danalab.chat.conversations.conversation import Conversation, Message, Part, PartType
from danalab.chat.conversations.special_tokens import SPECIAL_TOKENS, missing_specials
from danalab.data.tokenizers.base import Tokenizer
from danalab.errors import UserError

_MARKS: dict[PartType, tuple[str, str] | None] = {
    "text": None,
    "python": ("python_start", "python_end"),
    "python_output": ("output_start", "output_end"),
}


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
    """

    bos: int
    user_start: int
    user_end: int
    assistant_start: int
    assistant_end: int
    python_start: int
    python_end: int
    output_start: int
    output_end: int

    def __init__(self, tokenizer: Tokenizer):
        """Raises UserError if the tokenizer lacks special tokens; `extend_tokenizer` adds them."""
        if missing := missing_specials(tokenizer):
            raise UserError(f"tokenizer {tokenizer.name}: no special token {missing[0]}; danalab sft adds it to a run")
        self.tokenizer = tokenizer
        for name, spelling in SPECIAL_TOKENS.items():
            setattr(self, name, tokenizer.specials[spelling])
        self.n_ids = max(tokenizer.n_tokens, 1 + max(tokenizer.specials.values()))
        self._specials = frozenset(tokenizer.specials.values())

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end the assistant's message: assistant_end, and bos, which begins another document."""
        return self.assistant_end, self.bos

    def render(self, conversation: Conversation) -> Rendered:
        """The ids of a conversation with the mask of what the assistant says."""
        return self.render_all([conversation])[0]

    def render_all(self, conversations: Sequence[Conversation]) -> list[Rendered]:
        """`render` of each; texts are encoded together, which is faster."""
        return self._render(conversations, is_open=False)

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks.

        After a user's message they end with assistant_start. A conversation that ends with an assistant's message is
        continued within this message: after a text that it has begun, or after the output of a tool.
        """
        (ids, _), answered = self._render([conversation], is_open=True)[0], conversation.messages[-1].role != "user"
        return ids if answered else [*ids, self.assistant_start]

    def parse(self, ids: Iterable[int]) -> Message | None:
        """The assistant's message in ids that a model produced after `render_prompt`; None where it said nothing.

        Reads to the first stop token. Never fails: a call that is not closed ends with the ids, marks out of place and
        ids without text are left out.
        """
        opens: dict[int, PartType] = {self.python_start: "python", self.output_start: "python_output"}
        parts: list[tuple[PartType, list[int]]] = [("text", [])]
        for id_ in ids:
            if id_ in self.stop_tokens:
                break
            if id_ in opens:
                parts.append((opens[id_], []))
            elif id_ in (self.python_end, self.output_end):
                parts.append(("text", []))
            elif id_ not in self._specials and 0 <= id_ < self.n_ids:
                parts[-1][1].append(id_)
        found: list[Part] = []
        for kind, piece in parts:
            text = self.tokenizer.decode(piece)
            if kind == "python_output" and (not found or found[-1].type != "python"):
                kind = "text"
            if text.strip() or (kind == "text" and text) or kind == "python_output":
                found.append(Part(kind, text))
        return Message.of("assistant", found) if any(part.text.strip() for part in found) else None

    def _render(self, conversations: Sequence[Conversation], *, is_open: bool) -> list[Rendered]:
        pieces: list[list[tuple[str | int, int]]] = []
        for conversation in conversations:
            pieces.append(row := [(self.bos, 0)])
            for question, answer in conversation.turns():
                row += [(self.user_start, 0), (question, 0), (self.user_end, 0)]
                if answer is not None:
                    row += [(self.assistant_start, 0), *self._answer(answer), (self.assistant_end, 1)]
            if is_open and conversation.messages[-1].role == "assistant":
                row.pop()  # the end of the last message
        texts = [piece for row in pieces for piece, _ in row if isinstance(piece, str)]
        encoded = iter(self.tokenizer.encode_batch(texts))
        rendered = []
        for row in pieces:
            ids: list[int] = []
            mask: list[int] = []
            for piece, said in row:
                found = [piece] if isinstance(piece, int) else next(encoded)
                ids += found
                mask += [said] * len(found)
            rendered.append(Rendered(ids, mask))
        return rendered

    def _answer(self, message: Message) -> list[tuple[str | int, int]]:
        pieces: list[tuple[str | int, int]] = []
        for part in message.parts:
            said = int(part.type != "python_output")
            marks = _MARKS[part.type]
            if marks is None:
                pieces.append((part.text, said))
            else:
                start, end = (getattr(self, name) for name in marks)
                pieces += [(start, said), (part.text, said), (end, said)]
        return pieces


def render_conversation(tokenizer: Tokenizer, conversation: Conversation) -> Rendered:
    """The ids of a conversation with the mask of what the assistant says.

    Raises:
        UserError: the tokenizer lacks special tokens.
    """
    return ChatFormat(tokenizer).render(conversation)

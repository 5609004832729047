"""Conversations as tokens, with marks: the mask of what the model learns, and the calculations that it calls for.

    ids   bos user_start question user_end assistant_start answer assistant_end user_start ...
    mask   0      0          0        0           0           1         1           0
    an answer with a tool call:  text  python_start 12*7 python_end  output_start 84 output_end  text

The mask is 1 on what the assistant writes: its text, its tool calls with their marks, and the end of its message; it is
0 on the output of tools, which is given to it: `ToolCaller` forces what follows 12*7. Text that spells a special token
is encoded as characters.

The calculator does arithmetic on numbers, and "text".count("part"). Python only parses: numbers, + - * / // % ** and
brackets are all that has a value, and nothing is compiled or run. Numbers are exact fractions; "1,000" is a number.
Length, depth and size of an expression and of its values are bounded, so that every call ends in microseconds, on any
thread.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from danalab.chat.conversations import Conversation
from danalab.chat.messages import Message, Part, PartType
from danalab.data.tokenizers.base import CHAT_SPECIALS, EOS, Tokenizer
from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.inference import Engine

SPECIAL_TOKENS: dict[str, str] = {"bos": EOS, **{spelling.strip("<|>"): spelling for spelling in CHAT_SPECIALS}}
"""Name -> spelling: bos, user_start, user_end, assistant_start, assistant_end, python_start, python_end, output_start,
output_end. bos is the token that also separates documents, so a conversation starts as every document does."""
CHAT_STAGES = ("mid", "sft", "rl")
"""Stages of training that teach them to a model; its runs are asked as a chat where nothing else is said."""
_MARKS = {"python": ("python_start", "python_end"), "python_output": ("output_start", "output_end")}


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
    stop_texts = ()

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

    def render_prompt(self, conversation: Conversation) -> list[int]:
        """The ids after which the assistant speaks.

        After a user's message they end with assistant_start. A conversation that ends with an assistant's message is
        continued within this message: after a text that it has begun, or after the output of a tool.
        """
        (ids, _), answered = self.render_all([conversation], is_open=True)[0], conversation.messages[-1].role != "user"
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

    def render_all(self, conversations: Sequence[Conversation], *, is_open: bool = False) -> list[Rendered]:
        """`render` of each, encoded together, which is faster; `is_open`: an assistant's last message has no end."""
        pieces: list[list[tuple[str | int, int]]] = []
        for conversation in conversations:
            pieces.append(row := [(self.bos, 0)])
            for question, answer in conversation.turns():
                if question is not None:
                    row += [(self.user_start, 0), (question, 0), (self.user_end, 0)]
                if answer is not None:
                    row += [(self.assistant_start, 0), *self._answer(answer)]
                    row.append((self.assistant_end, int(answer.parts[-1].trained)))
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
            said = int(part.trained and part.type != "python_output")
            marks = _MARKS.get(part.type)
            if marks is None:
                pieces.append((part.text, said))
            else:
                start, end = (getattr(self, name) for name in marks)
                pieces += [(start, said), (part.text, said), (end, said)]
        return pieces


def render_conversation(tokenizer: Tokenizer, conversation: Conversation) -> Rendered:
    """The ids of a conversation, and what the assistant says; UserError: the tokenizer lacks special tokens."""
    return ChatFormat(tokenizer).render(conversation)


def missing_specials(tokenizer: Tokenizer) -> list[str]:
    """The spellings that a tokenizer does not know, in order."""
    return [spelling for spelling in SPECIAL_TOKENS.values() if spelling not in tokenizer.specials]


MAX_LENGTH = 256
"""Characters of an expression."""
MAX_DEPTH = 32
"""Brackets in each other, and signs."""
MAX_BITS = 256
"""Size of the numerator and of the denominator of any value [bits]."""
ERROR = "error"
"""Output of the tool for anything that is no expression, so that the model sees that its call failed."""

_TOKEN = re.compile(r"\s*(?:(\d[\d,]*(?:\.\d+)?|\.\d+)|(\*\*|//|[-+*/%()]))", re.ASCII)
_QUOTED = r"""("[^"\\\n]*"|'[^'\\\n]*')"""
_COUNT = re.compile(rf"\s*{_QUOTED}\s*\.\s*count\(\s*{_QUOTED}\s*\)\s*")
_DIGITS = Context(prec=12, rounding=ROUND_HALF_EVEN)


class Calculation(NamedTuple):
    """A call that was carried out."""

    expression: str
    result: str
    forced: tuple[int, ...]
    """Tokens that put the result into the answer."""


class ToolCaller:
    """Follows the tokens of one answer; rollouts, evaluation, terminal and server carry out calls by it.

    Attributes:
        state: where the last token stands: in text, in a call, or in what the model wrote as the output of a tool.
    """

    def __init__(self, chat: ChatFormat):
        self._chat = chat
        self.state: Literal["text", "call", "output"] = "text"
        self._inside: list[int] = []

    def feed(self, token: int) -> Calculation | None:
        """Take a token that does not end the answer; where it ends a call, the calculation to put into the answer."""
        chat = self._chat
        if token == chat.python_end and self.state == "call":
            self.state = "text"
            expression = chat.tokenizer.decode(self._inside)
            result = call_tool(expression)
            return Calculation(expression, result, (chat.output_start, *chat.tokenizer.encode(result), chat.output_end))
        if token == chat.python_start:
            self.state, self._inside = "call", []
        elif token == chat.output_start:
            self.state = "output"
        elif token == chat.output_end:
            self.state = "text"
        elif self.state == "call":
            self._inside.append(token)
        return None


def put_result(engine: Engine, number: int, calculation: Calculation) -> bool:
    """Put a result into the answer that a request writes; False: the context has no space for it."""
    try:
        engine.force(number, calculation.forced)
    except UserError:
        return False
    return True


def call_tool(expression: str) -> str:
    """The output of a tool call: the value, or `ERROR`."""
    value = calculate(expression)
    return ERROR if value is None else value


def calculate(expression: str) -> str | None:
    """The value of an expression as text, integers exact and others to 12 digits; None for what has no value."""
    if len(expression) > MAX_LENGTH:
        return None
    if (counted := _COUNT.fullmatch(expression)) is not None:
        text, part = (ast.literal_eval(quoted) for quoted in counted.groups())
        return str(text.count(part)) if part else None
    try:
        return _shown(_value(*_parsed(expression), MAX_DEPTH - 1))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _parsed(expression: str) -> tuple[ast.expr, list[Fraction]]:
    """The tree of an expression, and its numbers, which stand in it as indices."""
    words, numbers, depth, position, text = [], list[Fraction](), 0, 0, expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(expression)
        position = match.end()
        if match[1]:
            words.append(str(len(numbers)))  # Python itself would round 0.1, and read 1,000 as two numbers
            numbers.append(_bounded(Fraction(match[1].replace(",", ""))))
        else:
            words.append(match[2])
            depth += {"(": 1, ")": -1}.get(match[2], 0)
            if depth >= MAX_DEPTH:
                raise ValueError("nested too deeply")
    return ast.parse(" ".join(words), mode="eval").body, numbers


def _value(node: ast.expr, numbers: Sequence[Fraction], depth: int) -> Fraction:
    match node:
        case ast.Constant(value=int(index)):
            return numbers[index]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=inner) if depth:
            value = _value(inner, numbers, depth - 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right):
            operation = _OPERATIONS[type(sign)]
            return _bounded(Fraction(operation(_value(left, numbers, depth), _value(right, numbers, depth))))
    raise ValueError("no arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or (size > 1 and abs(exponent) * size > 2 * MAX_BITS):
        raise ValueError("exponent")
    if size <= 1 and base:  # 1 and -1 have no large powers
        return base ** (int(exponent) % 2 + 2)
    return base ** int(exponent)


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("out of range")
    return value


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    quotient = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize(_DIGITS):f}"

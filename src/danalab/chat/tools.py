"""Tool calls: a model's calculation between marks is carried out, and its result is put into the answer.

    text  python_start 12*7 python_end  output_start 84 output_end  text          `ToolCaller` forces what follows 12*7

The calculator does arithmetic on numbers, and "text".count("part"). It never runs Python code.

    sum     = product (("+" | "-") product)*          product = signed (("*" | "/" | "//" | "%") signed)*
    signed  = ("+" | "-") signed | power              power   = atom ["**" signed]
    atom    = number | "(" sum ")"

Numbers are exact fractions; "1,000" is a number. Length, depth and size of an expression and of its values are bounded,
so that every call ends in microseconds, on any thread.
"""

from __future__ import annotations

import ast
import operator
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple

from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.chat.conversations import ChatFormat
    from danalab.inference import Engine

MAX_LENGTH = 256
"""Characters of an expression."""
MAX_DEPTH = 32
MAX_BITS = 256
"""Of numerator and denominator of any value."""
ERROR = "error"
"""Output of the tool for anything that is no expression, so that the model sees that its call failed."""

_TOKEN = re.compile(r"\s*(?:(\d[\d,]*(?:\.\d+)?|\.\d+)|(\*\*|//|[-+*/%()]))", re.ASCII)
_QUOTED = r"""("[^"\\\n]*"|'[^'\\\n]*')"""
_COUNT = re.compile(rf"\s*{_QUOTED}\s*\.\s*count\(\s*{_QUOTED}\s*\)\s*")
_OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip
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
        return _shown(_Parser(_tokens(expression)).value())
    except (ValueError, ZeroDivisionError):
        return None


def _tokens(expression: str) -> list[str]:
    tokens, position, text = [], 0, expression.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(expression)
        tokens.append(match[1].replace(",", "") if match[1] else match[2])
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent; `ValueError` for what is no expression."""

    def __init__(self, tokens: list[str]):
        self._tokens = [*tokens, ""]
        self._at = self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._tokens[self._at]:
            raise ValueError("more than one expression")
        return value

    def _take(self, *wanted: str) -> str | None:
        token = self._tokens[self._at]
        if token not in wanted:
            return None
        self._at += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            value = _bounded(_OPERATIONS[sign](value, self._product()))
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            value = _bounded(Fraction(_OPERATIONS[sign](value, self._signed())))
        return value

    def _signed(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        sign = self._take("+", "-")
        value = self._power() if sign is None else self._signed()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("**"):
            return base
        exponent = self._signed()
        size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
        if exponent.denominator != 1 or (size > 1 and abs(exponent) * size > 2 * MAX_BITS):
            raise ValueError("exponent")
        if size <= 1:  # 0, 1 and -1 have no large powers
            return base ** (int(exponent) % 2 + 2) if base else base ** int(exponent)
        return _bounded(base ** int(exponent))

    def _atom(self) -> Fraction:
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise ValueError("a bracket is open")
            return value
        token = self._tokens[self._at]
        if not token or token[0] not in "0123456789.":
            raise ValueError("a number is missing")
        self._at += 1
        return _bounded(Fraction(token))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("out of range")
    return value


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    quotient = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize(_DIGITS):f}"

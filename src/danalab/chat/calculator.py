"""The calculator: arithmetic on numbers, and "text".count("part").

Python only parses: numbers, + - * / // % ** and brackets are all that has a value, and nothing is compiled or run.
Numbers are exact fractions; "1,000" is a number. Length, depth and size of an expression and of its values are bounded,
so that every call ends in microseconds, on any thread.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

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


def call_tool(expression: str) -> str:
    """The value of an expression as text, integers exact and others to 12 digits; `ERROR` for what has no value."""
    if len(expression) > MAX_LENGTH:
        return ERROR
    if (counted := _COUNT.fullmatch(expression)) is not None:
        text, part = (ast.literal_eval(quoted) for quoted in counted.groups())
        return str(text.count(part)) if part else ERROR
    try:
        return _shown(_value(*_parsed(expression), MAX_DEPTH - 1))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return ERROR


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
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("out of range")
    return value


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    quotient = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize(_DIGITS):f}"

"""The calculator equals Python where both have a value, and has no other abilities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danalab.chat.calculator import ERROR, call_tool
from danalab.chat.marks import CallFollower, ChatFormat
from danalab.data.tokenizers import ByteTokenizer

numbers = st.integers(0, 999).map(str) | st.decimals(0, 99, places=2).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            "({0[0]} {0[1]} {0[2]})".format
        )
        | inner.map("-{}".format)
    ),
    max_leaves=6,
)

CHAT = ChatFormat(ByteTokenizer())


@given(expressions)
def test_values_are_those_of_exact_arithmetic(expression):
    import re
    from fractions import Fraction

    exact = re.sub(r"\d+(\.\d+)?", lambda number: f"Fraction('{number[0]}')", expression)
    try:
        expected = Fraction(eval(exact, {"Fraction": Fraction}))
    except ZeroDivisionError:
        assert call_tool(expression) == ERROR
        return
    found = call_tool(expression)
    if expected.denominator == 1:
        assert found == str(expected)
    else:
        assert float(found) == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 + 7", "19"),
        ("1,000 * 3", "3000"),
        ("2**10", "1024"),
        ("-3**2", "-9"),
        ("2**-2", "0.25"),
        ("1/3", "0.333333333333"),
        ("1**999999999999", "1"),
        ("(0-1)**999999999999", "-1"),
        ("0.1 + 0.2", "0.3"),
        ('"strawberry".count("r")', "3"),
        ("'aaa'.count('aa')", "1"),
    ],
)
def test_known_values(expression, value):
    assert call_tool(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "1/0", "0**-1", "5 5", "(1", "1)", "x", "1e5", "__import__('os')", "().__class__", "2**1000", "9" * 300,
     "(" * 100 + "1" + ")" * 100, "9**9**9**9", '"a".count("")', '"a".upper()', "1 if 1 else 2", "٣+1"],
)  # fmt: skip
def test_anything_else_is_an_error_at_once(expression):
    assert call_tool(expression) == ERROR


@given(st.text(max_size=300))
def test_no_text_raises(text):
    assert isinstance(call_tool(text), str)


def fed(*tokens: int | str) -> list[str | None]:
    """What a follower gives for each token; texts are their bytes."""
    follower = CallFollower(CHAT)
    ids = [
        id_ for each in tokens for id_ in (CHAT.tokenizer.encode(each) if isinstance(each, str) else [each])
    ]
    return [follower.feed(id_) for id_ in ids]


def test_a_call_between_marks_is_carried_out():
    assert fed("I ", CHAT.python_start, "12*7", CHAT.python_end) == [None] * 7 + ["84"]
    assert fed(CHAT.python_start, "1/0", CHAT.python_end)[-1] == ERROR
    assert fed(CHAT.python_start, "9+", CHAT.python_start, "1+1", CHAT.python_end)[-1] == "2"


def test_marks_out_of_place_call_nothing():
    assert fed(CHAT.python_end, CHAT.output_start, "A", CHAT.output_end) == [None] * 4

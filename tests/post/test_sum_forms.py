"""The forms that a model never saw are in no training data; the last number of an answer is what counts."""

import random
import re

from danalab.chat.tasks import Dialogue
from danalab.chat.tasks.generated import _BEGINNINGS, _ENDINGS, asked_sum
from servers import ScriptedEngine, tiny_model
from sum_forms import UNSEEN, forms, right_answers


def plain(question: str) -> str:
    """A question without what may stand around it: greetings, endings, case, marks and spaces, whatever the sign."""
    for beginning in _BEGINNINGS:
        question = re.sub(f"^{re.escape(beginning)}", "", question, flags=re.IGNORECASE)
    for ending in _ENDINGS:
        question = question.removesuffix(ending)
    return re.sub(r"\W+", " ", re.sub(r"\d+", "N", question)).strip().lower()


def test_unseen_forms_are_a_hundred_and_not_in_the_training_data():
    draw = random.Random(0)
    drawn = {plain(asked_sum(draw, 1, sign, 2)) for sign in "+-*" for _ in range(6_000)}
    for conversation in Dialogue(turns=4)[:1000]:
        drawn |= {plain(turn.question) for turn in (conversation, *conversation.later)}
    unseen = [form for each in UNSEEN.values() for form in each]
    assert len(set(unseen)) == len(unseen) == 100
    assert not [form for form in unseen if plain(form.format(1, 2)) in drawn]
    assert len(forms()["typed"]) == 100


def test_the_last_number_that_is_said_decides():
    """Of a model that calls the calculator for sums, names the operands of products, and subtracts badly."""

    def says(question: str) -> str:
        left, sign, right = re.findall(r"\d+|[-+x]", question)
        if sign == "+":
            return f"<|python_start|>{left}+{right}<|python_end|>{int(left) + int(right)}"
        return f"{left} times {right} is {int(left) * int(right)}." if sign == "x" else "It is 1000."

    model = tiny_model()
    asked = {"typed": [("+", "{0}+{1}?"), ("-", "{0} - {1}")], "unseen": [("*", "Say {0} x {1}")]}
    found = right_answers(model, ScriptedEngine(model, says), asked, count=3)
    assert found == {"typed": {"{0}+{1}?": 3, "{0} - {1}": 0}, "unseen": {"Say {0} x {1}": 3}}

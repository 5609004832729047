"""The forms of sums that a model is asked in and never saw are in no training data."""

import random
import re

from danalab.chat.tasks import Dialogue
from danalab.chat.tasks.generated import _BEGINNINGS, _ENDINGS, asked_sum
from sum_forms import UNSEEN, forms


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

"""Questions about the model itself."""

import pytest

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
from danalab.errors import UserError


def test_each_kind_of_question_has_one_answer_and_test_wordings_are_new():
    train, _ = make_task("identity:size=400")
    test, _ = make_task("identity:size=100,split=test,called=Ada")
    assert len({problem.answer for problem in train}) == 4
    assert "My name is Ada." in {problem.answer for problem in test}
    assert not {problem.question for problem in train} & {problem.question for problem in test}
    assert [Scorer()(problem, problem.answer) for problem in train[:20]] == [1.0] * 20


def test_an_empty_name_is_refused():
    with pytest.raises(UserError, match="it must have a character"):
        make_task("identity:called= ")

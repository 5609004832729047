"""Mixtures: shares are kept, order is a function of the seed, small tasks are read whole in each epoch."""

from collections import Counter

import numpy as np
import pytest

from danalab.chat.tasks import Problem, TaskMixture
from danalab.chat.tasks.generated import Arithmetic
from danalab.chat.tasks.loaded import LoadedTask
from danalab.errors import UserError


def few(count=3, answer="a"):
    return LoadedTask("few", [Problem(f"q{i}", answer, "exact") for i in range(count)])


def test_each_task_has_its_share_in_every_block():
    mixture = TaskMixture([few(answer=answer) for answer in "012"], [5, 3, 2])
    for block in range(3):
        owners, _ = mixture._block(block)
        assert Counter(owners.tolist()) == {0: 5000, 1: 3000, 2: 2000}
    answers = [int(mixture[i].answer) for i in range(10_000, 10_050)]
    assert answers == mixture._block(1)[0][:50].tolist()


def test_the_order_is_a_function_of_the_seed():
    mixture, same, other = (TaskMixture([Arithmetic(), few()], seed=seed) for seed in (3, 3, 4))
    assert [mixture[i] for i in range(100)] == [same[i] for i in reversed(range(100))][::-1]
    assert [mixture[i] for i in range(100)] != [other[i] for i in range(100)]


def test_every_epoch_of_a_small_task_has_each_problem_once():
    mixture = TaskMixture([few(5)])
    ranks = np.argsort(
        mixture._block(0)[1]
    )  # the positions at which the task's problems come, in its own order
    for epoch in range(3):
        questions = sorted(mixture[int(i)].question for i in ranks[5 * epoch : 5 * epoch + 5])
        assert questions == [f"q{i}" for i in range(5)]


def test_an_empty_mixture_and_an_empty_task_are_refused():
    with pytest.raises(UserError, match="mixture of tasks is empty"):
        TaskMixture([])
    with pytest.raises(UserError, match="no problems"):
        few(0)

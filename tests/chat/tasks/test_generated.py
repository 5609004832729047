"""Generated tasks: a function of seed and position; right answers; test problems apart from training problems."""

import re

import pytest

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import Arithmetic, Counting, Spelling, make_task
from danalab.errors import UserError

GENERATED = ("arithmetic", "spelling", "counting")


@pytest.mark.parametrize("name", GENERATED)
def test_a_problem_depends_on_seed_and_position_alone(name):
    task, again = make_task(name)[0], make_task(name)[0]
    backwards = [again[i] for i in reversed(range(50))][::-1]
    assert [task[i] for i in range(50)] == backwards
    assert make_task(f"{name}:seed=1")[0][7] != task[7]
    assert len(task[10:20]) == 10
    with pytest.raises(IndexError):
        task[len(task)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", GENERATED)
def test_test_problems_are_no_training_problems(name):
    train, test = (make_task(name, split=split)[0] for split in ("train", "test"))
    assert not {p.question for p in train[:2000]} & {p.question for p in test[:500]}


@pytest.mark.parametrize("name", [*GENERATED, "arithmetic:calculator=true,operations=+-*"])
def test_a_solution_earns_the_whole_reward_and_is_a_conversation(name):
    task, score = make_task(name)[0], Scorer()
    for problem in task[:200]:
        assert score(problem, problem.conversation().messages[-1].spoken) == 1.0
        assert score(problem, "I do not know.") == 0.0


def test_answers_are_right():
    for problem in Arithmetic(max=30, operations="+-*")[:300]:
        left, sign, right = re.fullmatch(r"(\d+)([-+*])(\d+)", problem.data["expression"]).groups()
        assert {left, right} <= set(re.findall(r"\d+", problem.question))
        assert int(problem.answer) == {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](
            int(left), int(right)
        )
    for problem in Counting()[:300]:
        letter, word = re.search(r"letter (\w) appear in '(\w+)'", problem.question).groups()
        assert int(problem.answer) == word.count(letter)
    for problem in Spelling()[:100]:
        assert problem.answer.replace(" ", "") in problem.question


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aritmetic", "did you mean 'arithmetic'"),
        ("arithmetic:maximum=3", "unknown setting 'maximum'"),
        ("arithmetic:max=many", "max"),
        ("arithmetic:max", "KEY=VALUE"),
        ("arithmetic:max=1,max=2", "each once"),
        ("arithmetic:operations=^", "it must have only"),
        ("arithmetic:split=dev", "train or test"),
        ("arithmetic:weight=0", "positive"),
        ("counting:syllables=0", "1 to 20"),
        ("arithmetic:max=0", "at least 1"),
        (":max=1", "unknown task ''"),
        ("jsonl", "task jsonl: missing a required"),
    ],
)
def test_a_bad_specification_is_one_line_that_names_it(text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        make_task(text)


def test_settings_without_a_problem_for_a_split_are_named():
    with pytest.raises(UserError, match="no problem for the split test"):
        [make_task("arithmetic:max=1,operations=*", split="test")[0][i] for i in range(3)]

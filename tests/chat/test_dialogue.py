"""Generated conversations: right answers turn by turn, and what refers to earlier turns."""

import json
import re

import pytest

from danalab.chat.messages import CALCULATION, Message
from danalab.chat.rewards import Scorer
from danalab.chat.tasks import Problem, make_task
from danalab.chat.tasks.manners import CHIT_CHAT
from danalab.errors import UserError


def turns(problem):
    return [problem, *problem.later]


def test_every_turn_has_an_answer_that_earns_the_whole_reward():
    task, score = make_task("dialogue:turns=4")[0], Scorer()
    for problem in task[:300]:
        conversation = problem.conversation()
        assert len(conversation.messages) == 8
        for turn, (question, answer) in zip(turns(problem), conversation.turns(), strict=True):
            assert turn.question == question
            assert score(turn, answer.spoken) == 1.0


def test_follow_ups_begin_with_the_result_before_and_names_are_asked_back():
    follow_ups = asked = 0
    for problem in make_task("dialogue:turns=6")[0][:300]:
        name = result = ""
        for turn in turns(problem):
            said = turn.content
            if re.fullmatch(
                r"(Add|Subtract) \d+ (to|from) that\.|(Plus|And plus|Minus) \d+\?", turn.question
            ):
                assert said.startswith(f"<<{result}")
                follow_ups += 1
            if CALCULATION.search(said):
                result = CALCULATION.search(said)[2]
            elif said.startswith("Hello, "):
                name = said.removeprefix("Hello, ")
            elif said.startswith("Your name is "):
                assert said.removeprefix("Your name is ") == name
                asked += 1
    assert follow_ups > 50
    assert asked > 30


def test_there_are_forty_templates_and_a_conversation_is_a_function_of_seed_and_position():
    assert len(CHIT_CHAT) == 40
    train, test = (make_task("dialogue", split=split)[0] for split in ("train", "test"))
    assert train[5] == make_task("dialogue")[0][5]
    assert not {repr(p.conversation()) for p in train[:1000]} & {repr(p.conversation()) for p in test[:300]}


def test_one_turn_can_be_asked_after_the_right_answers_before_it():
    whole, third = (make_task(word, split="test")[0][3] for word in ("dialogue", "dialogue:ask=3"))
    assert third.prompt().messages[:-1] == whole.conversation().messages[:4]
    assert third.question == whole.later[1].question
    assert third.later == ()


def test_a_turn_without_an_answer_is_forgotten():
    problem = Problem("a", "1", "exact", later=(Problem("b", "2", "exact"),))
    assert problem.next_turn(None).prompt().messages == (Message.of("user", "b"),)
    said = Message.of("assistant", "1")
    assert [m.text for m in problem.next_turn(said).prompt().messages] == ["a", "1", "b"]


@pytest.mark.parametrize("bad", ["turns=0", "ask=4", "max=0"])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UserError, match=bad.partition("=")[0]):
        make_task(f"dialogue:{bad}")


def test_conversations_of_a_local_file_keep_their_turns_and_system_message(tmp_path):
    messages = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
        ("assistant", "Ciao"),
    ]
    line = {"messages": [{"role": role, "content": text} for role, text in messages], "source": "x"}
    file = tmp_path / "smoltalk.jsonl"
    file.write_text(json.dumps(line) + "\n" + json.dumps({"messages": line["messages"][1:3]}) + "\n")
    task = make_task(f"smoltalk:path={file},size=2")[0]
    assert [len(turns(problem)) for problem in task] == [2, 1]
    assert "Be brief." in task[0].conversation().messages[0].text
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    with pytest.raises(UserError, match="no answer in the conversation"):
        make_task(f"smoltalk:path={file}")

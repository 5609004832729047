"""Tokens of the engine as text, calculations and calls."""

import json
import math

import pytest

from danalab.chat.conversations import Conversation
from danalab.chat.messages import ConversationBuilder, FieldError, Function
from danalab.errors import UserError
from danalab.inference import Engine, Request, SamplingParameters, TokenEvent
from danalab.serve import ChatQuestion, ChatSession, Planner
from danalab.serve.fields import RequestError
from danalab.serve.planner import Answer, ChatReader, call_schema
from servers import tiny_model

MODEL = tiny_model(256)
FORMAT = MODEL.format


def read(*pieces: str | int, finish: str | None = "stop", stop: tuple[str, ...] = ()) -> tuple[Answer, list]:
    """The answer of a reader to texts and special tokens; and all deltas."""
    request = Request([1], SamplingParameters(max_tokens=99, stop=stop, stop_tokens=FORMAT.stop_tokens))
    reader, answer, deltas = ChatReader(MODEL, request), Answer(), []
    tokens = [id_ for piece in pieces for id_ in ([piece] if isinstance(piece, int) else MODEL.tokenizer.encode(piece))]
    for place, token in enumerate(tokens):
        reason = finish if place == len(tokens) - 1 else None
        deltas.append(reader.read(TokenEvent(0, token, -1.0, [], reason)))
        answer.add(deltas[-1])
    return answer, deltas


def test_the_server_calculates_and_hides_the_marks():
    answer, deltas = read("It is ", FORMAT.python_start, "12*7", FORMAT.python_end, "84.", FORMAT.assistant_end)
    assert answer.text == "It is 84."
    assert [(place, each.expression, each.result) for place, each in answer.calculations] == [(6, "12*7", "84")]
    forced = next(delta.calculation.forced for delta in deltas if delta.calculation)
    assert forced == (FORMAT.output_start, *b"84", FORMAT.output_end)


def test_a_call_that_is_no_expression_gets_an_error_as_output():
    answer, _ = read(FORMAT.python_start, "__import__('os')", FORMAT.python_end, "?", FORMAT.assistant_end)
    assert answer.calculations[0][1].result == "error"


def test_output_that_a_model_invents_is_not_shown():
    answer, _ = read("a", FORMAT.output_start, "invented", FORMAT.output_end, "b", FORMAT.assistant_end)
    assert answer.text == "ab"


@pytest.mark.parametrize("mark", ["user_start", "user_end", "assistant_start", "output_end", "python_end"])
def test_marks_out_of_place_have_no_text(mark):
    answer, _ = read("a", getattr(FORMAT, mark), "b", FORMAT.assistant_end)
    assert answer.text == "ab"


def test_characters_of_several_tokens_arrive_whole():
    answer, deltas = read("é🙂", finish="length")
    assert answer.text == "é🙂"
    assert [delta.text for delta in deltas] == ["", "é", "", "", "", "🙂"]
    assert answer.finish_reason == "length"


def test_part_of_a_character_at_the_end_becomes_a_replacement():
    answer, _ = read("a", 0xC3, finish="length")
    assert answer.text == "a\N{REPLACEMENT CHARACTER}"


def test_a_stop_text_ends_the_answer():
    answer, _ = read("one STOP two", finish=None, stop=("STOP",))
    assert answer.text == "one "


def test_an_engine_that_cannot_draw_is_an_error():
    request = Request([1], SamplingParameters(max_tokens=9))
    with pytest.raises(RequestError, match="not finite"):
        ChatReader(MODEL, request).read(TokenEvent(0, -1, math.nan, [], "error"))


def test_calls_and_results_are_parts_of_the_assistants_message():
    builder = ConversationBuilder()
    builder.add_text("system", "Be kind.")
    builder.add_text("user", "Weather in Rome?")
    builder.add_text("assistant", "I look.")
    builder.add_call("a", "weather", '{"city": "Rome"}', "messages.2")
    builder.add_call("b", "time", "{}", "messages.2")
    builder.add_result("b", "noon", "messages.3")
    builder.add_result("a", "sunny", "messages.4")
    conversation = Conversation(builder.build([Function(name="weather", parameters={"type": "object"})], "messages"))
    system, user, assistant = conversation.messages
    assert system.text.startswith("Be kind.\n\nYou can call these functions:\n")
    assert user.text == "Weather in Rome?"
    assert [(part.type, part.text) for part in assistant.parts] == [
        ("text", "I look."),
        ("python", '{"name": "weather", "arguments": {"city": "Rome"}}'),
        ("python_output", "sunny"),
        ("python", '{"name": "time", "arguments": {}}'),
        ("python_output", "noon"),
    ]
    assert FORMAT.render_prompt(conversation)[-1] == FORMAT.output_end  # the message goes on after the result


def test_a_call_without_result_and_a_result_without_call_are_refused():
    builder = ConversationBuilder()
    builder.add_text("user", "?")
    builder.add_call("a", "f", "{}", "messages.1")
    with pytest.raises(FieldError, match="the call 'a' has no result"):
        builder.build([], "messages")
    with pytest.raises(FieldError, match="no open call has the id 'b'"):
        builder.add_result("b", "x", "messages.2")
    with pytest.raises(FieldError, match="not valid JSON"):
        builder.add_call("c", "f", "{", "messages.2")


def test_each_choice_has_a_seed_of_its_own():
    question = ChatQuestion(Conversation.ask("hi"), SamplingParameters(seed=2**63 - 1, max_tokens=4), n=3)
    plan = Planner(MODEL, max_choices=4).chat(question, scope="")
    assert [request.parameters.seed for request, _ in plan.pairs] == [2**63 - 1, 0, 1]


def session(**settings) -> ChatSession:
    sampling = SamplingParameters(seed=1, **settings)
    return ChatSession(MODEL, Engine(MODEL.model, MODEL.tokenizer, max_batch_size=1), sampling)


def test_a_session_remembers_and_forgets():
    talk = session(max_tokens=8)
    first = "".join(delta.text for delta in talk.ask("one"))
    assert [message.text for message in talk.turns] == ["one", first]
    list(talk.ask("two"))
    assert len(talk.turns) == 4
    talk.reset()
    assert "".join(delta.text for delta in talk.ask("one")) == first


def test_a_stopped_answer_is_remembered_as_far_as_it_goes():
    talk = session(max_tokens=50)
    pieces = talk.ask("one")
    text = ""
    while len(text) < 3:
        text += next(pieces).text
    pieces.close()
    assert talk.turns[1].text == text
    assert not talk.engine.busy


def test_a_long_conversation_loses_its_oldest_turns():
    talk = session(max_tokens=40)
    for turn in range(8):
        assert list(talk.ask(f"question number {turn}"))
    with pytest.raises(UserError, match="context is 256 tokens"):
        list(talk.ask("x" * 300))


def test_the_call_schema_admits_only_calls():
    tool = Function(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    assert json.loads(json.dumps(call_schema([tool])))["properties"]["name"] == {"const": "f"}


def test_an_answer_is_remembered_with_its_calculations():
    said = ["It is ", FORMAT.python_start, "12*7", FORMAT.python_end, "84.", FORMAT.assistant_end]
    answer, _ = read(*said)
    learned = [("text", "It is "), ("python", "12*7"), ("python_output", "84"), ("text", "84.")]
    assert [(part.type, part.text) for part in answer.message.parts] == learned


def test_a_later_system_message_is_part_of_the_next_question():
    builder = ConversationBuilder()
    for role, text in [("system", "a"), ("user", "b"), ("assistant", "c"), ("system", "d"), ("user", "e")]:
        builder.add_text(role, text)
    messages = builder.build([], "messages")
    assert [(each.role, each.text) for each in messages] == [
        ("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d\n\ne"),
    ]  # fmt: skip


def test_a_session_answers_one_question_at_a_time():
    talk = session(max_tokens=8)
    first = talk.ask("one")
    next(first)
    with pytest.raises(UserError, match="an answer is being written"):
        next(talk.ask("two"))
    first.close()
    assert list(talk.ask("two"))

"""Conversations: what is accepted, how it becomes tokens, and back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.chat import ChatFormat, Conversation, Message, render_conversation
from danalab.chat.dialects import conversation_of, iter_conversations
from danalab.chat.marks import SPECIAL_TOKENS
from danalab.chat.messages import Part
from danalab.data.tokenizers import BpeTokenizer, ByteTokenizer, CharacterTokenizer, train_bpe
from danalab.errors import UserError

BYTES = ByteTokenizer()
FORMAT = ChatFormat(BYTES)
CALL = "Let me see: <<12*7=84>>It is 84."


def as_text(ids):
    return BYTES.decode(ids)


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return train_bpe(["the quick brown fox jumps over the lazy dog, 12 times a day\n"] * 3, 300)


def test_a_conversation_is_rendered_with_the_mask_on_what_the_assistant_says():
    ids, mask = FORMAT.render(Conversation.ask("12*7?", CALL, system="Be brief."))
    assert as_text(ids) == (
        "<|endoftext|><|user_start|>Be brief.\n\n12*7?<|user_end|><|assistant_start|>Let me see: "
        "<|python_start|>12*7<|python_end|><|output_start|>84<|output_end|>It is 84.<|assistant_end|>"
    )
    said = as_text([id_ for id_, spoken in zip(ids, mask, strict=True) if spoken])
    assert said == "Let me see: <|python_start|>12*7<|python_end|>It is 84.<|assistant_end|>"


def test_several_turns_follow_each_other_in_one_document():
    turns = ("Hi", "Hello", "Bye", "See you")
    roles = ("user", "assistant") * 2
    conversation = Conversation(
        tuple(Message.of(role, text) for role, text in zip(roles, turns, strict=True))
    )
    ids, mask = render_conversation(BYTES, conversation)
    assert ids.count(FORMAT.bos) == 1
    assert ids.count(FORMAT.user_start) == ids.count(FORMAT.assistant_end) == 2
    assert sum(mask) == len("Hello") + len("See you") + 2


@pytest.mark.parametrize("spelling", SPECIAL_TOKENS.values())
def test_user_text_that_spells_a_special_token_is_encoded_as_characters(spelling, bpe):
    for tokenizer in (BYTES, bpe, CharacterTokenizer()):
        plain = ChatFormat(tokenizer).render(Conversation.ask("x", "y")).ids
        chat = ChatFormat(tokenizer)
        ids, _ = chat.render(Conversation.ask(f"x{spelling}", f"y{spelling}"))
        specials = [id_ for id_ in ids if id_ in tokenizer.specials.values()]
        assert specials == [id_ for id_ in plain if id_ in tokenizer.specials.values()]
        assert spelling in tokenizer.decode(ids).replace("<|endoftext|>", "", 1)


def test_a_prompt_ends_where_the_assistant_speaks():
    conversation = Conversation.ask("12*7?", CALL)
    whole, prompt = FORMAT.render(conversation).ids, FORMAT.render_prompt(Conversation.ask("12*7?"))
    assert prompt[-1] == FORMAT.assistant_start
    assert whole[: len(prompt)] == prompt


def test_an_answer_that_has_begun_is_continued():
    begun = Conversation.ask("12*7?", CALL.removesuffix("It is 84."))
    prompt = FORMAT.render_prompt(begun)
    assert prompt[-1] == FORMAT.output_end
    assert FORMAT.render(Conversation.ask("12*7?", CALL)).ids[: len(prompt)] == prompt


def test_what_was_rendered_is_parsed_back():
    conversation = Conversation.ask("12*7?", CALL)
    ids, _ = FORMAT.render(conversation)
    assert (
        FORMAT.parse(ids[len(FORMAT.render_prompt(Conversation.ask("12*7?"))) :]) == conversation.messages[-1]
    )


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
answers = st.lists(text | st.sampled_from(["<<", "=", ">>", "<<1+1=2>>", "<<a=b>>"]), min_size=1).map("".join)


@settings(max_examples=60, deadline=None)
@given(answer=answers.filter(str.strip), question=text)
def test_every_answer_survives_rendering_and_parsing(answer, question):
    conversation = Conversation.ask(question, answer)
    assert conversation_of(json.loads(json.dumps(conversation.as_dict()))) == conversation
    ids, mask = FORMAT.render(conversation)
    assert len(ids) == len(mask)
    assert (
        FORMAT.parse(ids[len(FORMAT.render_prompt(Conversation.ask(question))) :])
        == conversation.messages[-1]
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(sorted(BYTES.specials.values())), st.integers(-5, 400)), max_size=30)
)
def test_parsing_never_fails_and_gives_a_valid_message(ids):
    message = FORMAT.parse(ids)
    assert message is None or message.text.strip()


BAD = {
    "7": "a line is {",
    '{"text": "x"}': "this one has text",
    "[1]": "'messages.0' must be a JSON object",
    '{"messages": "hi"}': "'messages' must be a list of 1 to 2000 messages",
    '{"messages": []}': "'messages' must be a list of 1 to 2000 messages",
    '{"messages": [{"role": "assistant", "content": "x"}]}': "no user's message",
    '{"messages": [{"role": "tool", "content": "x"}]}': "'messages.0.tool_call_id': no open call",
    '{"messages": [{"role": "bard", "content": "x"}]}': "'messages.0.role' is 'bard'; it must be one of system",
    '{"messages": [{"content": "x"}]}': "'messages.0.role' is missing",
    '{"messages": [{"role": "user", "content": 7}]}': "'messages.0.content' must be a text",
    '{"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]}': "'messages.0.content.0.type'",
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}': "'messages.0.content.0.text'",
    '{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "a b"}]}': "'tools.0'",
    '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}': "not valid",
    '{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]}': "has no result",
    '{"conversations": [{"from": "human", "value": 7}]}': "'messages.0.content' must be",
    '{"prompt": "x", "completion": 7}': "'messages.1.content' must be",
    '{"messages"': "not valid JSON",
    "[" * 100_000: "not valid JSON: nested too deeply",
}


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=range(len(BAD)))
def test_a_malformed_line_is_named_with_its_reason(tmp_path, line, reason):
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "x"}]}\n\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        list(iter_conversations(file))
    assert f"{file} line 3: " in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


U, A = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
CALLED = {"name": "weather", "arguments": {"city": "Rome"}}
WEATHER = {"name": "weather", "parameters": {"type": "object"}}
TOLD = (Part("call", json.dumps(CALLED)), Part("result", "sunny"), Part("text", "Hello."))
LINES = {
    "a bare list": ([U, A], "Hi", "Hello."),
    "null keys": ({"messages": [{**U, "name": None}, {**A, "tool_calls": None, "refusal": None}]}, "Hi", "Hello."),
    "keys of logs": ({"messages": [{**U, "id": "1", "name": "Eve"}, {**A, "annotations": []}]}, "Hi", "Hello."),
    "Arrow": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "image_url": None}]}, A]}, "Hi",
              "Hello."),
    "developer": ({"messages": [{"role": "developer", "content": "Be brief."}, U, A]}, "Be brief.\n\nHi", "Hello."),
    "an empty system": ({"messages": [{"role": "system", "content": ""}, U, A]}, "Hi", "Hello."),
    "a later system": ({"messages": [U, {"role": "system", "content": "x"}, A]}, "Hi\n\nx", "Hello."),
    "user after user": ({"messages": [U, U, A]}, "Hi\n\nHi", "Hello."),
    "an empty answer": ([U, {"role": "assistant", "content": None}, U, A], "Hi\n\nHi", "Hello."),
    "nanochat": ([U, {"role": "assistant", "content": [
        {"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}, {"type": "text", "text": "2"}]}],
        "Hi", "<<1+1=2>>2"),
    "a refusal": ({"messages": [U, {"role": "assistant", "content": None, "refusal": "No."}]}, "Hi", "No."),
    "ShareGPT": ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}],
                  "system": "Be brief."}, "Be brief.\n\nHi", "Hello."),
    "Alpaca": ({"instruction": "Greet.", "input": "me", "output": "Hello."}, "Greet.\n\nme", "Hello."),
    "Alpaca, no input": ({"instruction": "Greet.", "input": "", "output": "Hello."}, "Greet.", "Hello."),
    "a pair": ({"prompt": "Hi", "completion": "Hello."}, "Hi", "Hello."),
    "a pair of messages": ({"prompt": [U], "completion": [A]}, "Hi", "Hello."),
    "OpenOrca": ({"id": 1, "system_prompt": "", "question": "Hi", "response": "Hello."}, "Hi", "Hello."),
    "tool calls": ({"messages": [
        U, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"}, A]}, "Hi", TOLD),
    "tool calls without ids": ({"messages": [
        U, {"role": "assistant", "tool_calls": [{"function": CALLED}]}, {"role": "tool", "content": "sunny"}, A]},
        "Hi", TOLD),
    "the older function call": ({"messages": [
        U, {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        {"role": "function", "name": "weather", "content": "sunny"}, A]}, "Hi", TOLD),
    "ShareGPT's calls": ({"conversations": [
        {"from": "human", "value": "Hi"}, {"from": "function_call", "value": json.dumps(CALLED)},
        {"from": "observation", "value": "sunny"}, {"from": "gpt", "value": "Hello."}]}, "Hi", TOLD),
}  # fmt: skip


@pytest.mark.parametrize(("line", "question", "answer"), LINES.values(), ids=list(LINES))
def test_every_usual_form_of_a_line_is_read(line, question, answer):
    said = Message.of("assistant", answer) if isinstance(answer, str) else Message("assistant", answer)
    assert list(conversation_of(line).turns()) == [(question, said)]


def test_functions_of_a_line_are_described_as_the_server_does():
    for tools in ([WEATHER], [{"type": "function", "function": WEATHER}], json.dumps([WEATHER])):
        system = conversation_of({"messages": [U, A], "tools": tools}).messages[0]
        assert system.role == "system"
        assert '"name": "weather"' in system.text


def test_the_assistant_may_begin():
    conversation = conversation_of([A, U, A])
    text = as_text(FORMAT.render(conversation).ids)
    hello = "<|assistant_start|>Hello.<|assistant_end|>"
    assert text == f"<|endoftext|>{hello}<|user_start|>Hi<|user_end|>{hello}"


def test_an_answer_of_weight_0_is_not_learned():
    conversation = conversation_of({"messages": [U, {**A, "weight": 0}, U, {**A, "weight": 1}]})
    assert conversation_of(conversation.as_dict()) == conversation
    ids, mask = FORMAT.render(conversation)
    second = len(ids) - ids[::-1].index(FORMAT.assistant_start)
    assert mask == [0] * second + [1] * (len(ids) - second)


@pytest.mark.parametrize("indent", [None, 2])
def test_one_array_over_the_whole_file_is_read(tmp_path, indent):
    lines = [{"instruction": "a", "input": "", "output": "b"}, {"messages": [U, A]}, {"output": 7}]
    (tmp_path / "alpaca.json").write_text(json.dumps(lines, indent=indent))
    read = iter_conversations(tmp_path / "alpaca.json")
    assert [next(read)[1].messages[0].text for _ in range(2)] == ["a", "Hi"]
    with pytest.raises(UserError, match=r"alpaca.json entry 3: a line is"):
        next(read)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from(["", "a", "user", "human", "gpt", "tool"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["role", "type", "name"]), inner, max_size=2)
    ),
    max_leaves=5,
)
entries = st.dictionaries(
    st.sampled_from(
        ["role", "from", "content", "value", "weight", "tool_calls", "calculations", "tool_call_id"]
    ),
    json_values,
    max_size=4,
)
lines = json_values | st.lists(entries, max_size=3) | st.dictionaries(
    st.sampled_from(["messages", "conversations", "instruction", "input", "output", "prompt", "completion", "history",
                     "tools", "functions", "system", "question", "response"]),
    json_values | st.lists(entries, max_size=3), max_size=4,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(line=lines)
def test_any_line_is_a_conversation_or_refused_in_one_line(line):
    try:
        read = conversation_of(line, "FILE line 1")
    except UserError as error:
        read, told = None, str(error)
        assert told.startswith("FILE line 1: ")
        assert "\n" not in told
    if read is not None:
        FORMAT.render(read)


def test_other_entries_of_a_line_are_ignored_and_blank_lines_are_skipped(tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text('\ufeff{"id": 7, "messages": [{"role": "user", "content": "x"}]}\n\n', encoding="utf-8")
    assert list(iter_conversations(file)) == [(f"{file} line 1", Conversation.ask("x"))]


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match="line 1: not UTF-8"):
        list(iter_conversations(tmp_path / "binary.jsonl"))
    with pytest.raises(UserError, match="No such file"):
        list(iter_conversations(tmp_path / "absent.jsonl"))
    with pytest.raises(UserError, match="Is a directory"):
        list(iter_conversations(tmp_path))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1000, 3000))
def test_reading_stops_at_the_first_thing_that_is_wrong(n):
    with pytest.raises(UserError, match=r"'messages.0.content.0' must be a JSON object"):
        conversation_of({"messages": [{"role": "user", "content": [1] * n * 100}]})

"""Tokens of the engine as text, calculations and calls; a conversation without a server."""

import math

import pytest

from danalab.chat.messages import Conversation, Message
from danalab.chat.terminal import ChatSession
from danalab.errors import UserError
from danalab.inference import Request, SamplingParameters, TokenEvent
from danalab.serve.answers import ChatReader, Delta
from danalab.serve.errors import RequestError
from danalab.serve.requests import ChatRequest, plan_chat, prompt_of
from servers import tiny_model

MODEL = tiny_model(256)
FORMAT = MODEL.format
START, END = FORMAT.python_start, FORMAT.python_end


class Forcing:
    """Takes what is forced into an answer."""

    def __init__(self):
        self.forced: list[int] = []

    def force(self, number, tokens):
        self.forced += tokens


def read(
    *pieces: str | int, finish: str | None = "stop", stop: tuple[str, ...] = ()
) -> tuple[Delta, list, list[int]]:
    """The answer of a reader to texts and special tokens, the text of each delta, and what was forced."""
    request = Request([1], SamplingParameters(max_tokens=99, stop=stop, stop_tokens=FORMAT.stop_tokens))
    reader, answer, texts, engine = ChatReader(FORMAT, request), Delta(), [], Forcing()
    tokens = [
        id_
        for piece in pieces
        for id_ in ([piece] if isinstance(piece, int) else MODEL.tokenizer.encode(piece))
    ]
    for place, token in enumerate(tokens):
        reason = finish if place == len(tokens) - 1 else None
        delta = reader.read(TokenEvent(0, token, -1.0, [], reason), engine)  # pyright: ignore[reportArgumentType]
        texts.append(delta.text)
        answer += delta
    return answer, texts, engine.forced


def test_the_server_calculates_and_shows_it():
    answer, _, forced = read("It is ", START, "12*7", END, " 84.", FORMAT.assistant_end)
    assert answer.text == "It is <<12*7=84>> 84."
    assert forced == [FORMAT.output_start, *b"84", FORMAT.output_end]
    assert Message.of("assistant", answer.text).spoken == "It is  84."


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((START, "__import__('os')", END, "?"), "<<__import__('os')=error>>?"),
        (("a", FORMAT.output_start, "b"), "ab"),
        *(
            (("a", getattr(FORMAT, mark), "b"), "ab")
            for mark in ("user_start", "assistant_start", "python_end")
        ),
        (("a", 0xC3), "a\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_text_of_marks(pieces, text):
    assert read(*pieces, FORMAT.assistant_end)[0].text == text


def test_characters_of_several_tokens_arrive_whole():
    answer, texts, _ = read("\u00e9\U0001f642", finish="length")
    assert texts == ["", "\u00e9", "", "", "", "\U0001f642"]
    assert answer.finish_reason == "length"


def test_a_stop_text_ends_the_answer():
    assert read("one STOP two", finish=None, stop=("STOP",))[0].text == "one "


def test_an_engine_that_cannot_draw_is_an_error():
    request = Request([1], SamplingParameters(max_tokens=9))
    with pytest.raises(RequestError, match="not finite"):
        ChatReader(FORMAT, request).read(TokenEvent(0, -1, math.nan, [], "error"), None)  # pyright: ignore[reportArgumentType]


def test_each_choice_has_a_seed_of_its_own():
    asked = ChatRequest(messages=[{"role": "user", "content": "hi"}], seed=2**63 - 1, max_tokens=4, n=3)
    pairs, _ = plan_chat(asked, MODEL, 4, "")
    assert [request.parameters.seed for request, _ in pairs] == [2**63 - 1, 0, 1]


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 30])
@pytest.mark.parametrize("size", [1, 20, 90])
def test_a_prompt_keeps_the_newest_turns_that_fit(turns, size):
    said = [Message.of(role, role[0] * size) for _ in range(turns) for role in ("user", "assistant")]
    system = Message.of("system", "Be kind.")
    messages = (system, *said, Message.of("user", "why?"))
    expected = next(
        prompt
        for start in range(0, len(said) + 1, 2)
        if len(prompt := FORMAT.render_prompt(Conversation((system, *messages[1 + start :])))) <= 256 - 16
    )
    assert prompt_of(MODEL, Conversation(messages), 16, drops=True) == expected


def session(**settings) -> ChatSession:
    return ChatSession(MODEL, ChatRequest(seed=1, **settings))


def test_a_session_remembers():
    talk = session(max_tokens=8)
    first = "".join(delta.text for delta in talk.ask("one"))
    assert [message["content"] for message in talk.turns] == ["one", first]
    list(talk.ask("two"))
    assert len(talk.turns) == 4


def test_a_stopped_answer_is_remembered_as_far_as_it_goes():
    talk = session(max_tokens=50)
    pieces = talk.ask("one")
    text = ""
    while len(text) < 3:
        text += next(pieces).text
    pieces.close()
    assert talk.turns[1]["content"] == text


def test_a_long_conversation_loses_its_oldest_turns():
    talk = session(max_tokens=40)
    for turn in range(8):
        assert list(talk.ask(f"question number {turn}"))
    with pytest.raises(UserError, match="context is 256"):
        list(talk.ask("x" * 300))

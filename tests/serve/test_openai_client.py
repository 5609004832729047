"""The official client of OpenAI, unmodified, and LiteLLM."""

import json

import openai
import pytest

from servers import RunningServer

QUESTION = [{"role": "user", "content": "What is 12 * 7?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The forecast", "parameters": WEATHER},
}


@pytest.fixture(scope="module")
def api(server: RunningServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(api, **settings):
    return api.chat.completions.create(
        **{"model": "tiny", "messages": QUESTION, "max_tokens": 12, "seed": 1, **settings}
    )


def test_a_stream_has_the_text_of_the_whole_answer(api):
    whole = ask(api)
    chunks = list(ask(api, stream=True))
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12


def test_usage_is_streamed_where_it_is_asked_for_and_nowhere_else(api):
    without = list(ask(api, stream=True))
    chunks = list(ask(api, stream=True, stream_options={"include_usage": True}))
    assert all("usage" not in chunk.model_dump(exclude_unset=True) and chunk.choices for chunk in without)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(api).usage


def test_a_seed_repeats_an_answer_and_choices_differ(api):
    first, second = ask(api, n=3), ask(api, n=3)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    assert texts[0] == ask(api).choices[0].message.content
    streamed = ["", "", ""]
    for chunk in ask(api, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_an_answer_ends_before_a_stop_text_also_in_a_stream(api):
    whole = ask(api, max_tokens=80).choices[0].message.content
    stop = whole[10:12]
    cut = ask(api, max_tokens=80, stop=[stop])
    streamed = "".join(
        c.choices[0].delta.content or "" for c in ask(api, max_tokens=80, stop=stop, stream=True)
    )
    assert cut.choices[0].message.content == streamed == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_cover_the_text(api):
    answer = ask(api, logprobs=True, top_logprobs=3, temperature=0)
    tokens = answer.choices[0].logprobs.content
    text = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert text == answer.choices[0].message.content
    for token in tokens:
        values = [each.logprob for each in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert token.logprob == pytest.approx(values[0])
    streamed = [
        token
        for chunk in ask(api, logprobs=True, top_logprobs=3, temperature=0, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in tokens]


def test_logit_bias_decides(api):
    answer = ask(api, logit_bias={str(ord("k")): 100}, max_tokens=5)
    assert answer.choices[0].message.content == "kkkkk"


def test_an_answer_follows_a_json_schema(api):
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    for seed in range(5):
        answer = ask(api, response_format=form, max_tokens=60, seed=seed, temperature=1.5)
        found = json.loads(answer.choices[0].message.content)
        assert set(found) == {"city", "days"}
        assert found["city"] in ("Paris", "Rome")
        assert 1 <= found["days"] <= 9
        assert answer.choices[0].finish_reason == "stop"


def test_json_object_gives_an_object(api):
    answer = ask(api, response_format={"type": "json_object"}, max_tokens=400, logit_bias={str(ord("}")): 20})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_tool_is_called_with_arguments_of_its_schema(api, choice):
    answer = ask(api, tools=[TOOL], tool_choice=choice, max_tokens=80).choices[0]
    call = answer.message.tool_calls[0]
    assert answer.finish_reason == "tool_calls"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city", "days"}
    chunks = list(ask(api, tools=[TOOL], tool_choice=choice, max_tokens=80, stream=True))
    streamed = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert [call.function.arguments for call in streamed] == [call.function.arguments]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_that_is_cut_off_is_not_delivered(api):
    for tool_choice in ("required", "auto"):
        answer = ask(api, tools=[TOOL], tool_choice=tool_choice, max_tokens=1).choices[0]
        assert answer.finish_reason == "length"
        assert answer.message.tool_calls is None


def test_a_model_that_chooses_to_call_is_held_to_the_schema(api, server):
    mark = server.model.format.python_start
    answer = ask(api, tools=[TOOL], max_tokens=80, logit_bias={str(mark): 100}).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert json.loads(answer.message.tool_calls[0].function.arguments).keys() == {"city", "days"}
    never = ask(api, tools=[TOOL], tool_choice="none", max_tokens=5).choices[0]
    assert never.message.tool_calls is None


def test_a_result_of_a_tool_continues_the_conversation(api):
    call = ask(api, tools=[TOOL], tool_choice="required", max_tokens=80).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"}
    messages = [*QUESTION, call.model_dump(exclude_none=True, exclude_unset=True), result]
    answer = ask(api, messages=messages, tools=[TOOL], tool_choice="none")
    assert answer.choices[0].message.content


def test_completions_continue_texts_and_ids(api):
    one = api.completions.create(model="tiny", prompt="abc", max_tokens=6, seed=3, logprobs=2)
    same = api.completions.create(model="tiny", prompt=list(b"abc"), max_tokens=6, seed=3)
    two = api.completions.create(model="tiny", prompt=["abc", "abd"], max_tokens=6, seed=3, n=2)
    streamed = api.completions.create(model="tiny", prompt="abc", max_tokens=6, seed=3, stream=True)
    assert one.choices[0].text == same.choices[0].text == two.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in streamed) == one.choices[0].text
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert len(one.choices[0].logprobs.tokens) == 6
    assert all(len(top) <= 2 for top in one.choices[0].logprobs.top_logprobs)


def test_completions_have_openais_default_length(api):
    assert api.completions.create(model="tiny", prompt="abc", seed=1).usage.completion_tokens == 16


def test_models_are_listed(api):
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").id == "tiny"


def test_errors_have_the_classes_of_the_client(api):
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        ask(api, model="gpt-4")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(api, messages=[{"role": "user", "content": "x" * 600}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(api, audio={"voice": "x", "format": "mp3"})
    assert (caught.value.param, caught.value.code) == ("audio", "unsupported_parameter")


@pytest.mark.slow  # its import takes seconds
@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_litellm_talks_to_it(server):
    litellm = pytest.importorskip("litellm")
    settings = {
        "model": "openai/tiny",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "messages": QUESTION,
    }
    whole = litellm.completion(**settings, max_tokens=12, seed=1)
    chunks = list(litellm.completion(**settings, max_tokens=12, seed=1, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 12
    called = litellm.completion(**settings, tools=[TOOL], tool_choice="required", max_tokens=80)
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments).keys() == {"city", "days"}
    with pytest.raises(litellm.exceptions.BadRequestError):
        litellm.completion(**settings, temperature=5)

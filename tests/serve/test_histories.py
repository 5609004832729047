"""Histories as clients send them back: three turns with a sum or a tool, by each client's own loop."""

import json

import httpx
import openai
import pydantic
import pytest

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def api(scripted):
    with openai.OpenAI(base_url=f"{scripted[0].url}/v1", api_key="none", max_retries=0) as made:
        yield made


AS_IT_IS = [lambda message: message, lambda message: message.model_dump(), lambda message: message.to_dict()]
LEARNED = "It is <|python_start|>12*7<|python_end|><|output_start|>84<|output_end|>, I say."


@pytest.mark.parametrize("returned", AS_IT_IS, ids=["object", "model_dump", "to_dict"])
def test_three_turns_of_sums(api, scripted, returned):
    messages = []
    for question in ("12*7?", "2+2?", "bye"):
        messages.append({"role": "user", "content": question})
        message = api.chat.completions.create(model="tiny", messages=messages).choices[0].message
        messages.append(returned(message))
    assert message.content == "bye"
    prompt = scripted[1].prompts[-1]
    assert LEARNED in prompt
    assert LEARNED.replace("12*7", "2+2").replace("84", "4") in prompt


def test_streams_say_where_a_calculation_stands(api, scripted):
    messages = [{"role": "user", "content": "12*7?"}]
    text, calculations = "", []
    for chunk in api.chat.completions.create(model="tiny", messages=messages, stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        calculations += [delta.calculation] if hasattr(delta, "calculation") else []
    messages += [{"role": "assistant", "content": text, "calculations": calculations}, {"role": "user", "content": "x"}]
    api.chat.completions.create(model="tiny", messages=messages)
    assert LEARNED in scripted[1].prompts[-1]


def test_three_turns_of_responses(api, scripted):
    items = []
    for question in ("12*7?", "2+2?", "bye"):
        items.append({"role": "user", "content": question})
        items += api.responses.create(model="tiny", input=items).output
    assert items[-1].content[0].text == "bye"
    assert LEARNED in scripted[1].prompts[-1]


ITEMS = {
    "without types": [{"role": "assistant", "content": [{"type": "output_text", "text": "It is 84."}], "id": "msg_1"}],
    "with types": [{"type": "message", "role": "assistant", "content": "It is 84."}],
    "with reasoning": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": "It is 84."},
    ],
}


@pytest.mark.parametrize("answer", ITEMS.values(), ids=list(ITEMS))
def test_items_of_responses_may_leave_their_type_out(client, scripted, answer):
    """As AI SDK sends them."""
    question = {"role": "user", "content": [{"type": "input_text", "text": "12*7?"}]}
    items = [question, *answer, {"role": "user", "content": "x"}]
    response = client.post(f"{scripted[0].url}/v1/responses", json={"input": items, "max_output_tokens": 2})
    assert response.status_code == 200, response.text
    assert "12*7?<|user_end|><|assistant_start|>It is 84.<|assistant_end|>" in scripted[1].prompts[-1]


@pytest.mark.parametrize(("item", "param"), [({"type": "x"}, "input.0.type"), (7, "input.0"), ({}, "input.0.role")])
def test_an_item_of_no_kind_is_named(client, item, param):
    response = client.post("/v1/responses", json={"input": [item]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_what_training_reads_the_server_reads(client):
    messages = [
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": ""},
        {"role": "user", "content": "Hi", "id": "1", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "x", "image_url": None}]},
    ]
    response = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2, "top_k": -1})
    assert response.status_code == 200, response.text
    assert response.headers["warning"] == '299 danalab "ignored: messages.id"'


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_a_parsed_answer_and_a_tool_go_back(server):
    class Answer(pydantic.BaseModel):
        ok: bool

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:
        messages = [{"role": "user", "content": "?"}]
        settings = {"model": "tiny", "max_tokens": 80, "seed": 1}
        messages.append(
            api.chat.completions.parse(messages=messages, response_format=Answer, **settings).choices[0].message
        )
        messages.append({"role": "user", "content": "weather?"})
        called = api.chat.completions.create(messages=messages, tools=[TOOL], tool_choice="required", **settings)
        (call,) = called.choices[0].message.tool_calls
        messages += [called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        assert api.chat.completions.create(messages=messages, tools=[TOOL], **settings).choices[0].finish_reason
        assert api.responses.create(model="tiny", input=[
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!", "provider_specific_fields": {"x": 1}},
            {"role": "user", "content": "?"},
        ], max_output_tokens=4).output  # fmt: skip


@pytest.mark.slow  # its import takes seconds
@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_three_turns_by_litellm(scripted):
    litellm = pytest.importorskip("litellm")
    messages = []
    for question in ("12*7?", "2+2?", "bye"):
        messages.append({"role": "user", "content": question})
        answer = litellm.completion(
            model="openai/tiny", api_base=f"{scripted[0].url}/v1", api_key="none", messages=messages
        )
        messages.append(answer.choices[0].message)
    assert messages[-1].content == "bye"
    assert "It is " in scripted[1].prompts[-1]


def post(client: httpx.Client, **body) -> httpx.Response:
    question = [{"role": "user", "content": "hi", **body.pop("user_fields", {})}]
    return client.post("/v1/chat/completions", json={"messages": question, "max_tokens": 2, **body})


def test_fields_without_effect_are_named_in_a_header(client):
    ignored = {
        "store": True, "reasoning_effort": "low", "prompt_cache_key": "a", "safety_identifier": "b",
        "verbosity": "low", "user": "c", "metadata": {"d": "e"},
    }  # fmt: skip
    response = post(client, user_fields={"name": "Eve"}, **ignored)
    assert response.status_code == 200
    named = response.headers["warning"].removeprefix('299 danalab "ignored: ').removesuffix('"').split(", ")
    assert set(named) == {*ignored, "messages.name"}
    assert "warning" not in post(client, store=False).headers
    with client.stream("POST", "/v1/responses", json={"input": "x", "store": True, "stream": True}) as streamed:
        assert streamed.headers["warning"] == '299 danalab "ignored: store"'


def test_a_length_beyond_the_context_is_cut_to_it(client):
    usage = post(client, max_tokens=10_000, logit_bias={"107": 100}).json()["usage"]
    assert usage["total_tokens"] == 512


def test_log_probabilities_are_the_models_whatever_the_temperature(client):
    def first(**settings) -> list[dict]:
        choice = post(client, logprobs=True, top_logprobs=5, max_tokens=1, **settings).json()["choices"][0]
        return choice["logprobs"]["content"][0]["top_logprobs"]

    plain = first(temperature=0)
    assert first(temperature=1.7, seed=1) == plain
    assert first(temperature=1, top_p=0.2, logit_bias={"107": 5}, seed=2) == plain
    assert json.dumps(plain)

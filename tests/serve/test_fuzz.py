"""Any request is planned or refused: nothing else is raised."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from danalab.errors import UserError
from danalab.serve.requests import ChatRequest, CompletionRequest, plan_chat, plan_completion, read_request
from servers import tiny_model

MODEL = tiny_model(256)
words = st.sampled_from(
    ["", "a", "user", "assistant", "system", "tool", "function", "text", "\ud800", "<|user_start|>"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words | st.just("type"), inner, max_size=2),
    max_leaves=5,
)
texts = words | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "output_text", "python", "image"]),
                                                "text": words}), max_size=2) | values  # fmt: skip
calls = st.lists(st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": words, "arguments": st.sampled_from(["{}", "{"]) | values})},
    optional={"id": words, "type": words},
), max_size=2)  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries(
        {"role": words, "content": texts},
        optional={"tool_calls": calls | values, "tool_call_id": words, "weight": values, "name": values, "type": words,
                  "refusal": words | values, "function_call": values},
    ) | values,
    max_size=4,
)  # fmt: skip
more = st.dictionaries(
    st.sampled_from(
        ["top_k", "stop", "n", "logit_bias", "tools", "tool_choice", "response_format", "echo", "seed", "xs"]
    ),
    values,
    max_size=2,
)


@settings(max_examples=170, deadline=None)
@given(said=messages, more=more)
def test_any_request_is_planned_or_refused(said, more):
    for kind, plan, body in (
        (ChatRequest, plan_chat, {"messages": said, **more}),
        (CompletionRequest, plan_completion, {"prompt": said, **more}),
    ):
        with contextlib.suppress(UserError):
            plan(read_request(kind, body)[0], MODEL, 2, "")

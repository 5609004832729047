"""What the two endpoints are asked, and the engine's requests that follow from it.

    JSON -> ChatRequest: scalars by pydantic, messages and tools by `chat.messages` -> conversation -> prompt -> Request

Every check stops at the first thing that is wrong, and the work is bounded by the size of the body: what cannot fit in
the model's context is not encoded. Fields that change nothing here are ignored; the answer's header `warning` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen
from pydantic import BaseModel, ConfigDict, ValidationError

from danalab.chat.marks import ChatFormat
from danalab.chat.messages import Conversation, FieldError, Function, read_functions, read_messages
from danalab.errors import UserError
from danalab.inference.json_constraint import JsonConstraint, SchemasBusy
from danalab.inference.request import Request, SamplingParameters
from danalab.serve.answers import ChatReader, TextReader
from danalab.serve.chat_model import ChatModel
from danalab.serve.errors import RequestError

DEFAULT_TOKENS = 16  # OpenAI's default of `max_tokens` of completions
Stop = Annotated[str, MaxLen(1000)]
EMPTY: tuple[Any, ...] = (None, False, "", [], {})
"""Values of a field that say nothing."""
UNSUPPORTED = (
    *("audio", "function_call", "functions", "prediction", "web_search_options"),
    *("suffix", "best_of", "echo"),
)
"""Fields of OpenAI's API that would change the answer, and are refused."""


class Sampling(BaseModel):
    """How tokens are chosen. `top_k`, `min_p` and `repetition_penalty` go beyond OpenAI's API."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())

    model: str | None = None
    """Name of the served model; null: the first."""
    max_tokens: Annotated[int, Ge(-1)] | None = None
    """-1: as many as fit in the context."""
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1)] | None = None
    """0 and -1: all tokens."""
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Ge(0.1), Le(10)] | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    n: Annotated[int, Ge(1)] | None = None
    stop: Stop | Annotated[list[Stop], MaxLen(256)] | None = None
    """Texts that end the answer; they are not part of it."""
    logit_bias: Annotated[dict[int, Annotated[float, Ge(-100), Le(100)]], MaxLen(1024)] | None = None
    """Token id -> number added to its logit."""
    stream: bool | None = None
    stream_options: Any = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return isinstance(self.stream_options, Mapping) and bool(self.stream_options.get("include_usage"))

    def parameters(self, max_tokens: int | None, logprobs: int | None, n_ids: int) -> SamplingParameters:
        """The parameters of the engine; the defaults and the meaning of `logprobs` are OpenAI's."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        if given.get("top_p") == 0:
            given |= {"top_p": 1.0, "top_k": 1}
        elif self.top_k is not None:
            given["top_k"] = max(0, self.top_k)
        biases = self.logit_bias or {}
        if unknown := [token for token in biases if not 0 <= token < n_ids]:
            told = f"'logit_bias' has the key {unknown[0]}; it must be one of the model's {n_ids} token ids"
            raise FieldError(told, param="logit_bias")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return SamplingParameters(
            **{"temperature": 1.0, **given},
            max_tokens=None if max_tokens == -1 else max_tokens,
            logprobs=logprobs,
            stop=tuple(filter(None, stops)),
            logit_bias=biases,
        )


_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)


class ChatRequest(Sampling):
    """POST /v1/chat/completions: a conversation to continue."""

    messages: Any = None
    max_completion_tokens: Annotated[int, Ge(-1)] | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Ge(0), Le(20)] | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    modalities: Any = None
    truncation: str | None = None
    """auto: the oldest turns are left out if the conversation exceeds the context. Beyond OpenAI's API."""


class CompletionRequest(Sampling):
    """POST /v1/completions: prompts to continue, as texts or token ids."""

    prompt: Any = None
    logprobs: Annotated[int, Ge(0), Le(5)] | None = None


def read_request(kind: type[Sampling], body: Any) -> tuple[Any, str]:
    """(the request of some JSON, what the header `warning` says). FieldError: the first thing that is wrong."""
    if not isinstance(body, dict):
        raise FieldError("the body must be a JSON object")
    for name in UNSUPPORTED:
        if body.get(name) not in EMPTY and (name, body[name]) != ("best_of", 1):
            told = f"'{name}' is not supported by this server"
            raise FieldError(told, param=name, code="unsupported_parameter")
    if body.get("modalities") not in (None, ["text"]):
        raise FieldError("'modalities' is only supported as [\"text\"]", param="modalities")
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = str(first["loc"][0])
        told = first["msg"].replace("Input should", "it must")
        raise FieldError(f"'{param}': {told}", param=param, code="invalid_value") from None
    unknown = [name for name in body if name not in kind.model_fields and body[name] not in EMPTY]
    words = ", ".join(sorted(unknown))
    if len(words) > 200 or not words.isascii() or not words.isprintable():
        words = f"{len(unknown)} unknown fields"
    return request, f"ignored: {words}" if unknown else ""


# ---- plans ----


Work = tuple[list[tuple[Request, TextReader]], int]
"""The requests of the engine for one HTTP request with their readers, and the tokens of its prompts."""


def plan_chat(asked: ChatRequest, chat_model: ChatModel, max_choices: int, scope: str) -> Work:
    """Answers to a conversation. FieldError: what is wrong with it, or what the model cannot do."""
    n = asked.n or 1
    _check_count(n, "n", max_choices)
    tools = [] if asked.tools is None else read_functions(asked.tools)
    choice = _tool_choice(asked.tool_choice, tools)
    conversation = read_messages(asked.messages, () if choice == "none" else tools)
    chat = chat_model.format
    if tools and not isinstance(chat, ChatFormat):
        told = f"'tools' need a model that danalab sft has trained; {chat_model.name} is not one"
        raise FieldError(told, param="tools")
    forced = choice if isinstance(choice, list) else []
    mark = [chat.python_start] if forced and isinstance(chat, ChatFormat) else []
    wanted = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    sampling = asked.parameters(wanted, logprobs, chat_model.n_ids)
    prompt = [
        *prompt_of(chat_model, conversation, sampling.max_tokens, drops=asked.truncation == "auto"),
        *mark,
    ]
    limit = limit_of(chat_model, prompt, sampling.max_tokens, "messages")
    stop = () if forced else (*sampling.stop, *chat.stop_texts)
    sampling = replace(sampling, max_tokens=limit, stop_tokens=tuple(chat.stop_tokens), stop=stop)
    schema = call_schema(forced) if forced else _schema(asked.response_format)
    constraint = (
        None if schema is None else _constraint(chat_model, schema, "tools" if forced else "response_format")
    )
    call = None
    if choice == "auto" and tools and schema is None:
        call = _constraint(chat_model, call_schema(tools), "tools")
    pairs: list[tuple[Request, TextReader]] = []
    for index in range(n):
        request = Request(prompt, _seeded(sampling, index), constraint and constraint.copy(), scope)
        pairs.append((request, ChatReader(chat, request, call and call.copy(), is_call=bool(forced))))
    return pairs, len(prompt)


def plan_completion(asked: CompletionRequest, chat_model: ChatModel, max_choices: int, scope: str) -> Work:
    """`n` continuations of each prompt, in order."""
    prompts, n = asked.prompt, asked.n or 1
    if isinstance(prompts, str) or (isinstance(prompts, list) and prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    if not isinstance(prompts, list) or not prompts:
        raise FieldError("'prompt' must be a text, a list of token ids, or a list of these", param="prompt")
    _check_count(n * len(prompts), "n" if len(prompts) == 1 else "prompt", max_choices)
    wanted = DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
    sampling = asked.parameters(wanted, asked.logprobs, chat_model.n_ids)
    sampling = replace(sampling, stop_tokens=(chat_model.tokenizer.eos_id,))
    pairs: list[tuple[Request, TextReader]] = []
    total = 0
    for prompt in prompts:
        ids = ids_of(chat_model, prompt) or [chat_model.tokenizer.eos_id]
        own = replace(sampling, max_tokens=limit_of(chat_model, ids, sampling.max_tokens, "prompt"))
        total += len(ids)
        for index in range(n):
            request = Request(ids, _seeded(own, index), None, scope)
            pairs.append((request, TextReader(chat_model.tokenizer, request)))
    return pairs, total


def _check_count(count: int, param: str, most: int) -> None:
    if count > most:
        told = f"'{param}': {count} answers requested; this server allows at most {most}"
        raise FieldError(told, param=param)


def _seeded(sampling: SamplingParameters, index: int) -> SamplingParameters:
    """The parameters of choice `index`: each has another seed."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + index) % 2**63)


# ---- prompts ----


def ids_of(chat_model: ChatModel, prompt: Any) -> list[int]:
    """Ids of a text after the tokenizer's prefix, or the given ids. FieldError: too long, or unknown ids."""
    if isinstance(prompt, str):
        if len(prompt) > chat_model.context * chat_model.longest:
            raise too_long(f"more than {chat_model.context}", chat_model.context, "prompt")
        return [*chat_model.tokenizer.prefix, *chat_model.tokenizer.encode(prompt)]
    if not isinstance(prompt, list):
        raise FieldError("'prompt' must be a text, a list of token ids, or a list of these", param="prompt")
    for position, token in enumerate(prompt[: chat_model.context]):
        if not isinstance(token, int) or not 0 <= token < chat_model.n_ids:
            told = f"'prompt.{position}': {token!s:.40} is not one of the tokenizer's {chat_model.n_ids} ids"
            raise FieldError(told, param="prompt")
    return prompt


def prompt_of(
    chat_model: ChatModel, conversation: Conversation, wanted: int | None, *, drops: bool
) -> list[int]:
    """The ids of a conversation. With `drops` the oldest turns are left out until `wanted` tokens fit, too."""
    context, messages = chat_model.context, conversation.messages
    space = context - (wanted if wanted is not None and 0 < wanted < context else 1)
    head = int(messages[0].role == "system")
    places = range(head, len(messages)) if drops else ()
    starts = [0, *(at for at in places if at == head or messages[at].role == "user")]

    def start_after(sizes: list[int], over: int) -> int:
        """The turn before which messages of `over` tokens are left out, or the last one."""
        before = [0, *accumulate(sizes)]
        return next((at for at in starts if before[at] >= over), starts[-1])

    def rendered(start: int) -> list[int]:
        kept = Conversation((*messages[:head], *messages[max(start, head) :]))
        return chat_model.format.render_prompt(kept)

    texts = [each.text for each in messages]
    # A token has at most so many bytes: what cannot fit is left out, or refused, before it is encoded.
    least = [len(text.encode(errors="replace")) // chat_model.longest for text in texts]
    least[:head] = [0] * head  # the system message stays
    start = start_after(least, sum(least) - space)
    if sum(least[start:]) >= context:
        raise too_long(f"at least {sum(least[start:])}", context, "messages")
    prompt = rendered(start)
    if len(prompt) <= space or not drops:
        return prompt
    sizes = [len(ids) + 2 for ids in chat_model.tokenizer.encode_batch(texts[start:])]  # with its marks
    if start < head:
        sizes[0] = 0
    return rendered(start_after([0] * start + sizes, len(prompt) - space))


def limit_of(chat_model: ChatModel, prompt: Sequence[int], wanted: int | None, param: str) -> int:
    """Tokens to generate at most: `wanted`, or what the context has space for. FieldError: it has none."""
    space = chat_model.context - len(prompt)
    if space < 1:
        raise too_long(str(len(prompt)), chat_model.context, param)
    return space if wanted is None else min(wanted, space)


def too_long(prompt: str, context: int, param: str) -> FieldError:
    """The refusal of a prompt that the context has no space for."""
    told = f"the prompt has {prompt} tokens: the model's context is {context} tokens"
    return FieldError(told, param=param, code="context_length_exceeded")


# ---- schemas and tools ----


def call_schema(tools: Sequence[Function]) -> dict[str, Any]:
    """JSON schema of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": tool["parameters"]},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _schema(value: Any) -> Mapping[str, Any] | None:
    """The JSON schema of `response_format`; None: free text."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    wrapped = value.get("json_schema") if kind == "json_schema" else None
    schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    if not isinstance(schema, Mapping):
        told = (
            "'response_format' must have the type text, json_object, or json_schema with json_schema.schema"
        )
        raise FieldError(told, param="response_format")
    return schema


def _tool_choice(value: Any, tools: Sequence[Function]) -> Any:
    """ "auto", "none", or the functions of which one must be called."""
    if len({tool["name"] for tool in tools}) < len(tools):
        raise FieldError("'tools': two functions have the same name", "tools")
    if value in (None, "auto", "none"):
        return value or "auto"
    if value == "required" and tools:
        return [*tools]
    function = value.get("function", value) if isinstance(value, Mapping) else {}
    found = [tool for tool in tools if isinstance(function, Mapping) and tool["name"] == function.get("name")]
    if not found:
        told = "'tool_choice' must be none, auto, required, or one of the tools; required needs a tool"
        raise FieldError(told, "tool_choice")
    return found


def _constraint(chat_model: ChatModel, schema: Mapping[str, Any], param: str) -> JsonConstraint:
    try:
        return JsonConstraint(chat_model.tokenizer, schema)
    except SchemasBusy as error:
        raise RequestError(429, str(error), param=param, headers={"retry-after": "1"}) from None
    except UserError as error:
        raise FieldError(f"'{param}': {error}", param=param) from None

"""Fields that several endpoints share, and what becomes of those that this server does not support.

`Ignored` fields, which standard clients send, have no effect; the answer's header `warning` names them. Of other fields
of OpenAI's API the neutral value is accepted (`only`), any other gets status 400 with the field's name, as unknown
fields do.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from danalab.chat.conversations import Part
from danalab.chat.tools import Calculation
from danalab.inference import SamplingParameters
from danalab.serve.errors import RequestError
from danalab.serve.messages import NO_ARGUMENTS, Tool
from danalab.serve.readers import Answer, answer_parts

JsonObject = dict[str, Any]


def only(*values: Any) -> AfterValidator:
    """Accept null and `values`."""

    def check(value: Any) -> Any:
        if value is not None and not any(value == each and type(value) is type(each) for each in values):
            allowed = " or ".join(map(json.dumps, values))
            message = f"is only supported as {allowed}" if values else "is not supported by this server"
            raise PydanticCustomError("unsupported", message)  # pyright: ignore[reportArgumentType]
        return value

    return AfterValidator(check)


Unsupported = Annotated[Any, only()]
Ignored = Annotated[Any, "ignored"]
Count = Annotated[int, Ge(1)]


class Body(BaseModel):
    """The JSON of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class PastBody(Body):
    """A piece of what an assistant has said, as clients send it back: fields that they added are of no interest."""

    model_config = ConfigDict(extra="ignore")


class PastCalculation(PastBody):
    expression: str
    result: str
    position: Annotated[int, Ge(0)] = 0
    """Characters of the text before it."""


def past_parts(text: str, calculations: Sequence[PastCalculation] | None) -> list[Part]:
    """An assistant's message as the model is trained on it."""
    return answer_parts(
        text, [(each.position, Calculation(each.expression, each.result, ())) for each in calculations or ()]
    )


def calculations_json(answer: Answer) -> list[JsonObject]:
    """The calculations of an answer."""
    return [
        {"expression": each.expression, "result": each.result, "position": position}
        for position, each in answer.calculations
    ]


def ignored_fields(body: Body) -> list[str]:
    """Names of fields of a request that are given and have no effect."""
    names: dict[str, None] = {}
    for name, info in type(body).model_fields.items():
        value = getattr(body, name)
        if "ignored" in info.metadata and value not in (None, False):
            names[name] = None
        for inner in value if isinstance(value, list) else [value]:
            names |= {f"{name}.{each}": None for each in ignored_fields(inner)} if isinstance(inner, Body) else {}
    return list(names)


class StreamOptions(Body):
    include_usage: bool | None = None
    """Send a last chunk with the counts of tokens."""
    include_obfuscation: Annotated[bool | None, only(False)] = None


class Sampling(Body):
    """How tokens are chosen. `top_k`, `min_p` and `repetition_penalty` go beyond OpenAI's API."""

    model: str | None = None
    """Name of the served model; null: the only one."""
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(0)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Ge(0.1), Le(10)] | None = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    stream: bool | None = None
    user: Ignored = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """The parameters of the engine; the defaults and the meaning of `logprobs` are OpenAI's."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        return SamplingParameters(
            **{"temperature": 1.0, **given}, max_tokens=max_tokens, logprobs=logprobs, model_logprobs=True, **more
        )


class Choices(Sampling):
    """Fields of the two endpoints with choices."""

    n: Count | None = None
    stop: Annotated[str, Len(0, 1000)] | Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 16)] | None = None
    """Texts that end the answer; they are not part of it."""
    logit_bias: Annotated[dict[str, Annotated[float, Ge(-100), Le(100)]], Len(0, 1024)] | None = None
    """Token id -> number added to its logit."""
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """As of `Sampling`.

        Raises:
            RequestError: a key of `logit_bias` that is no number.
        """
        given = {name: getattr(self, name) for name in _PENALTIES if getattr(self, name) is not None}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        bias = {_token_id(key): value for key, value in (self.logit_bias or {}).items()}
        return super().sampling(max_tokens, logprobs, stop=tuple(filter(None, stop)), logit_bias=bias, **given, **more)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
_PENALTIES = ("frequency_penalty", "presence_penalty")


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise RequestError(400, f"'logit_bias.{key:.40}': the keys must be token ids", param="logit_bias")
    return int(key)


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class Function(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: JsonObject | None = None
    """JSON schema of the arguments; null: no arguments."""
    strict: bool | None = None
    """Accepted without effect: arguments always follow the schema."""

    def as_tool(self) -> Tool:
        """For the planner."""
        return Tool(self.name, self.description or "", self.parameters or NO_ARGUMENTS)


def usage(prompt_tokens: int, generated: int) -> JsonObject:
    """Counts of tokens, as the two endpoints with choices report them."""
    total = prompt_tokens + generated
    return {"prompt_tokens": prompt_tokens, "completion_tokens": generated, "total_tokens": total}


def finite(logprob: float) -> float:
    """A log-probability as JSON has it: OpenAI writes -9999 for impossible tokens."""
    return max(logprob, -9999.0)

"""The JSON of requests and of errors: fields that endpoints share, and what becomes of those that are not supported.

`Ignored` fields, which standard clients send, have no effect; the answer's header `warning` names them. Of other fields
of OpenAI's API the neutral value is accepted (`only`), any other gets status 400 with the field's name, as unknown
fields do. Errors are one line for people, and OpenAI's {"error": {"message", "type", "param", "code"}} for programs.

"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from danalab.chat.message_fields import Body, FieldError, Function, Ignored, field_error
from danalab.inference import SamplingParameters

JsonObject = dict[str, Any]


def only(*values: Any, reason: str = "") -> AfterValidator:
    """Accept null and `values`; `reason`: why no others, and what serves in their place."""

    def check(value: Any) -> Any:
        if value is not None and not any(value == each and type(value) is type(each) for each in values):
            allowed = " or ".join(map(json.dumps, values))
            message = f"is only supported as {allowed}" if values else "is not supported by this server"
            raise PydanticCustomError("unsupported", message + reason)  # pyright: ignore[reportArgumentType]
        return value

    return AfterValidator(check)


Unsupported = Annotated[Any, only()]
Count = Annotated[int, Ge(1)]


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
    top_k: Annotated[int, Ge(-1)] | None = None
    """0 and -1: all tokens."""
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Ge(0.1), Le(10)] | None = None
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    stream: bool | None = None
    user: Ignored = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """The parameters of the engine; the defaults and the meaning of `logprobs` are OpenAI's."""
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        given["top_k"] = max(0, self.top_k or 0)
        return SamplingParameters(
            **{"temperature": 1.0, **given}, max_tokens=max_tokens, logprobs=logprobs, model_logprobs=True, **more
        )


class Choices(Sampling):
    """Fields of the two endpoints with choices."""

    n: Count | None = None
    stop: Annotated[str, Len(0, 1000)] | Annotated[list[Annotated[str, Len(1, 1000)]], Len(0, 256)] | None = None
    """Texts that end the answer; they are not part of it."""
    logit_bias: Annotated[dict[str, Annotated[float, Ge(-100), Le(100)]], Len(0, 1024)] | None = None
    """Token id -> number added to its logit."""
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Ge(-2), Le(2)] | None = None
    presence_penalty: Annotated[float, Ge(-2), Le(2)] | None = None

    def sampling(self, max_tokens: int | None, logprobs: int | None = None, **more: Any) -> SamplingParameters:
        """As of `Sampling`. Raises RequestError: a key of `logit_bias` that is no number."""
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


class JsonSchema(Body):
    """What an answer must match. Chat completions wrap it, responses have its type beside the name."""

    name: str
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class WrappedSchema(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class TypedSchema(JsonSchema):
    type: Literal["json_schema"]


class NamedFunction(Body):
    """The function that the model must call."""

    name: str


class TypedFunction(Function):
    type: Literal["function"]


class TypedFunctionName(NamedFunction):
    type: Literal["function"]


ToolChoice = Literal["none", "auto", "required"]


def finite(logprob: float) -> float:
    """A log-probability as JSON has it: OpenAI writes -9999 for impossible tokens."""
    return max(logprob, -9999.0)


_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class RequestError(FieldError):
    """A request that cannot be answered, with an HTTP `status` and `headers`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message, param, code)
        self.status, self.headers = status, dict(headers or {})

    @classmethod
    def of(cls, error: FieldError) -> "RequestError":
        """Status 400."""
        return cls(400, str(error), param=error.param, code=error.code)


def error_json(error: RequestError) -> dict[str, Any]:
    """The body of an error's response."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8; half of a surrogate pair, which UTF-8 has no bytes for, becomes its escape."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def validation_error(errors: Sequence[Mapping[str, Any]], body: Any, known: Sequence[str]) -> RequestError:
    """The error 400 for pydantic's errors about a request's JSON; `known` fields are suggested."""
    return RequestError.of(field_error(errors, body, known))

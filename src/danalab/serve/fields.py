"""The JSON of requests and of errors: fields that endpoints share, and what becomes of those that are not supported.

`Ignored` fields, which standard clients send, have no effect; the answer's header `warning` names them. Of other fields
of OpenAI's API the neutral value is accepted (`only`), any other gets status 400 with the field's name, as unknown
fields do. Errors are one line for people, and OpenAI's {"error": {"message", "type", "param", "code"}} for programs.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from danalab.chat.messages import Body, FieldError

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
Count = Annotated[int, Ge(1)]


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


class NamedFunction(Body):
    """The function that the model must call."""

    name: str


ToolChoice = Literal["none", "auto", "required"]


def finite(logprob: float | None) -> float | None:
    """A log-probability as JSON has it: OpenAI writes -9999 for impossible tokens, null for the first of a prompt."""
    return None if logprob is None else max(logprob, -9999.0)


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

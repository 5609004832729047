"""Errors in a request: for people one line, for programs OpenAI's {"error": {"message", "type", "param", "code"}}."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from danalab.errors import UserError, nearest

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class RequestError(UserError):
    """A request that cannot be answered.

    Args:
        status: as in HTTP.
        param: path of the field at fault, e.g. "messages.0.content".
        code: name for programs, e.g. "context_length_exceeded".
        headers: for the HTTP response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})


def error_json(error: RequestError) -> dict[str, Any]:
    """The body of an error's response."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8; half of a surrogate pair, which UTF-8 has no bytes for, becomes its escape."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def validation_error(errors: Sequence[Mapping[str, Any]], body: Any, known: Sequence[str]) -> RequestError:
    """The error 400 for pydantic's errors about a request.

    Args:
        body: the JSON of the request.
        known: fields of the request, for suggestions.
    """
    # A union reports an error for each member; the one that lies deepest is about the member that was meant.
    path, details = max(((_path(error, body), error) for error in errors), key=lambda pair: len(pair[0]))
    param = ".".join(map(str, path))[:200] or None
    context = details.get("ctx", {})
    code = None
    match details["type"]:
        case "json_invalid":
            message = f"the body is not valid JSON: {context.get('error', 'it cannot be read')}"
        case "missing":
            message = "the body is missing" if param is None else f"'{param}' is missing"
        case "extra_forbidden":
            hint = nearest(str(path[-1]), known) if len(path) == 1 else ""
            message, code = f"'{param}' is not a known field{hint}", "unknown_parameter"
        case "unsupported":
            message, code = f"'{param}' {details['msg']}", "unsupported_parameter"
        case "literal_error":
            message, code = f"'{param}' must be {context['expected']}", "unsupported_value"
        case "union_tag_invalid":
            param = f"{param}.{context['discriminator'][1:-1]}"
            message, code = f"'{param}' must be one of {context['expected_tags']}", "unsupported_value"
        case "model_attributes_type" | "dict_type" if param is None:
            message = "the body must be a JSON object"
        case _:
            reason = str(details["msg"]).replace("Input should", "must").replace("List should", "must")
            message = f"'{param}': {reason}" if param else f"the body: {reason}"
    return RequestError(400, message, param=param, code=code)


def _path(error: Mapping[str, Any], body: Any) -> list[str | int]:
    """The place of an error in the JSON of the request, without the names of types that pydantic adds."""
    path: list[str | int] = []
    place: Any = body
    steps = [step for step in error["loc"] if step != "body"]
    for number, step in enumerate(steps):
        if (isinstance(place, dict) and step in place) or (
            isinstance(place, list) and isinstance(step, int) and step < len(place)
        ):
            path.append(step)
            place = place[step]  # pyright: ignore[reportCallIssue, reportArgumentType]
        elif error["type"] == "missing" and number == len(steps) - 1:
            path.append(step)
    return path

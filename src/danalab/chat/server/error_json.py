"""JSON on the wire, and errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from danalab.chat.assistant.errors import RequestError
from danalab.errors import nearest

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8; half of a surrogate pair, which UTF-8 has no bytes for, becomes its escape."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


class JsonAnswer(JSONResponse):
    """A response of any text that a client or a model can write."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def error_json(error: RequestError) -> dict[str, Any]:
    """The body of an error's response."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


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

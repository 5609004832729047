"""Requests that cannot be answered, as one line for people and as OpenAI's JSON for programs."""

from collections.abc import Mapping
from typing import Any

from danalab.chat.messages import FieldError

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


def error_json(error: RequestError) -> dict[str, Any]:
    """The body of an error's response."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}

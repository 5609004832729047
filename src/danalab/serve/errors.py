"""Requests that cannot be answered, as one line for people and as OpenAI's JSON for programs."""

from collections.abc import Mapping

from danalab.chat.messages import FieldError


class RequestError(FieldError):
    """A request that cannot be answered, with an HTTP `status` and `headers`; a `FieldError` has the status 400."""

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

"""Errors in a request to a model: for people a line, for programs a status, the field at fault and a code."""

from collections.abc import Mapping

from danalab.errors import UserError


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

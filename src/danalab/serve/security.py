"""Checks before a request reaches a route: the host, the key, and the size and pace of the body.

It is plain ASGI middleware: streams pass through it, and a route sees that its client has gone.
"""

import asyncio
import hashlib
import hmac
import re
from typing import Any

from starlette.exceptions import HTTPException

from danalab.serve.errors import RequestError, error_json
from danalab.serve.settings import LOCAL_HOSTS, ServerSettings
from danalab.serve.streaming import JsonAnswer

PROTECTED = ("/v1/", "/tokenize", "/detokenize", "/metrics", "/openapi.json")
BODY_SECONDS = 60
"""Between pieces of a request's body at most [s]."""
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The page may load and call nothing but this server, so text that a model writes cannot either."""


class LocalHosts:
    """Refuses requests under other names than this machine's: protects a local server against DNS rebinding."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
            if len(hosts) != 1 or host_name(hosts[0]) not in LOCAL_HOSTS:
                await _refusal(RequestError(400, "this server has another host name"))(scope, receive, send)
                return
        await self.app(scope, receive, send)


def host_name(header: str) -> str:
    """The name or address of a Host header, without port and brackets: [::1]:8000 is ::1."""
    match = re.fullmatch(r"(?:\[([^][]*)\]|([^:]*))(?::\d*)?", header)
    return "" if match is None else (match[1] or match[2] or "").lower()


class Gate:
    """Refuses requests without an accepted key and bodies over the limit; stores the scope of prefix reuse.

    Caches of prefixes are shared only within one scope, which is that of a key.
    """

    def __init__(self, app: Any, settings: ServerSettings):
        self.app, self.limit = app, settings.max_body_bytes
        self._keys = [_digest(key) for key in settings.api_key]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        try:
            scope.setdefault("state", {})["prefix_scope"] = self._admit(scope["path"], headers, preflight)
        except RequestError as error:
            await _refusal(error)(scope, receive, send)
            return
        await self.app(scope, _Limited(receive, self.limit), _with_headers(send))

    def _admit(self, path: str, headers: dict[bytes, str], preflight: bool) -> str:
        key = self._key(headers.get(b"authorization", ""))
        if self._keys and key is None and path.startswith(PROTECTED) and not preflight:
            raise RequestError(
                401,
                "this server needs a key: send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        length = headers.get(b"content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.limit:
            raise _too_large(self.limit)
        return "" if key is None else key.hex()

    def _key(self, authorization: str) -> bytes | None:
        """Digest of the accepted key of an Authorization header, or None. Takes the same time whichever key it is."""
        scheme, _, given = authorization.partition(" ")
        accepted = [key for key in self._keys if hmac.compare_digest(_digest(given.strip()), key)]
        return accepted[0] if accepted and scheme.lower() == "bearer" else None


class _Limited:
    """`receive` of a body that may be slow, and longer than it says."""

    def __init__(self, receive: Any, limit: int):
        self.receive, self.limit, self.read, self.more = receive, limit, 0, True

    async def __call__(self) -> Any:
        try:  # after the body, the next message is the disconnection, for which a stream waits as long as it takes
            message = await asyncio.wait_for(self.receive(), BODY_SECONDS if self.more else None)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"nothing of the body has come for {BODY_SECONDS} s") from None
        self.more = message.get("more_body", False)
        self.read += len(message.get("body", b""))
        if self.read > self.limit:
            error = _too_large(self.limit)
            raise HTTPException(error.status, str(error))  # FastAPI passes on no other class from here
        return message


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body is larger than {limit} bytes, the limit of this server", code="body_too_large")


def _refusal(error: RequestError) -> JsonAnswer:
    return JsonAnswer(error_json(error), error.status, error.headers)


def _with_headers(send: Any) -> Any:
    extra = [(name.encode(), value.encode()) for name, value in PAGE_HEADERS.items()]

    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers

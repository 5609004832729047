"""Settings of the server: where it listens, who may ask, and limits."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the application needs to know beside the model."""

    api_keys: tuple[str, ...] = ()
    """Accepted bearer tokens; empty: requests need none."""
    max_body_bytes: int = 1 << 20
    """Size of a request's body at most [bytes]."""
    max_choices: int = 16
    """Answers to one request at most: `n`, or prompts x `n`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the server from a browser."""
    allowed_hosts: tuple[str, ...] = ("*",)
    """Accepted names in the Host header; "*": any. Protects a server on localhost against DNS rebinding."""
    conversation_log: Path | None = None
    """File for prompts and answers, a JSON object a line; None: nothing of them is written anywhere."""
    page: bool = True
    """Whether / is the chat page."""

    def key_of(self, authorization: str | None) -> str | None:
        """The accepted key of an Authorization header, or None. Takes the same time whichever key it is."""
        scheme, _, given = (authorization or "").partition(" ")
        found = None
        for key in self.api_keys:
            if hmac.compare_digest(_digest(given.strip()), _digest(key)):
                found = key
        return found if scheme.lower() == "bearer" else None


def prefix_scope(key: str | None) -> str:
    """The scope of prefix reuse of a key: caches are shared only within one scope."""
    return "" if key is None else _digest(key).hex()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()

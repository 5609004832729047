"""Settings of the server, which are the flags of `danalab serve`: where it listens, who may ask, and limits."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Le

from danalab.train.config.flags import Count, Natural, setting

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all of this machine's.")
    port: Annotated[Natural, Le(65535)] = setting(8000, "Port to listen on; 0: a free one.")
    api_key: tuple[str, ...] = setting(
        (),
        "API keys; a request must send one as bearer token. The variable DANALAB_API_KEY hides one from ps.",
    )
    cors_origin: tuple[str, ...] = setting(
        (), "Origins whose pages may call the API from a browser, e.g. https://example.org."
    )
    max_batch_size: Count = setting(32, "Requests that are decoded together.")
    max_waiting: Natural = setting(256, "Requests that wait for a slot; more get status 429.")
    max_connections: Count = setting(1000, "Connections at the same time, at most; more get status 503.")
    max_choices: Count = setting(16, "Answers to one request, at most: n, or prompts x n.")
    max_body_kb: Count = setting(1024, "Size of a request at most [KiB].")
    cache_tokens: Count | None = setting(
        None, "Capacity of the cache [tokens]; default: as the engine chooses."
    )
    drain_seconds: Natural = setting(30, "Time for running requests after SIGTERM or Ctrl-C [s].")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOCAL_HOSTS

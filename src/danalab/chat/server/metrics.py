"""Metrics of the server in Prometheus' text format."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from danalab.inference import Statistics

TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TO_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """Counts and times of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def add(kind: Any, name: str, text: str, **more: Any) -> Any:
            return kind(f"danalab_{name}", text, registry=self._registry, **more)

        self.running = add(Gauge, "requests_running", "Requests that the engine decodes")
        self.waiting = add(Gauge, "requests_waiting", "Requests that wait for a slot")
        self.cache_use = add(Gauge, "cache_use_ratio", "Share of the engine's cache that running requests hold")
        self.prefix_tokens = add(Gauge, "prefix_hit_tokens", "Prompt tokens found in the cache of earlier requests")
        self.refused = add(Counter, "requests_refused", "Requests refused because the queue was full")
        self.requests = add(Counter, "requests", "Finished generations", labelnames=["finish_reason"])
        self.prompt_tokens = add(Counter, "prompt_tokens", "Prompt tokens of finished generations")
        self.generated_tokens = add(Counter, "generated_tokens", "Tokens of finished generations")
        self.to_first = add(
            Histogram, "time_to_first_token_seconds", "From submission to the first token [s]", buckets=_TO_FIRST
        )
        self.per_token = add(
            Histogram, "time_per_output_token_seconds", "Between tokens, after the first [s]", buckets=_PER_TOKEN
        )

    def finished(self, generation: Any, reason: str) -> None:
        """Count a `Generation` that has ended."""
        self.requests.labels(reason).inc()
        self.prompt_tokens.inc(len(generation.request.prompt))
        self.generated_tokens.inc(generation.tokens)
        if generation.tokens:
            self.to_first.observe(generation.first_token - generation.submitted)
        if generation.tokens > 1:
            self.per_token.observe((generation.last_token - generation.first_token) / (generation.tokens - 1))

    def text(self, load: Statistics) -> bytes:
        """The page of /metrics."""
        self.running.set(load.running)
        self.waiting.set(load.waiting)
        self.cache_use.set(load.cache_blocks_used / max(load.cache_blocks, 1))
        self.prefix_tokens.set(load.reused_tokens)
        return generate_latest(self._registry)

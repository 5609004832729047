"""Decoding speed of the engine against transformers.generate, with the same weights, in one run.

Equal prompts in batches, and a trace of requests that arrive at random times with mixed lengths. On the trace
transformers serves them one after the other, or all that wait in one padded batch. The greedy tokens of all contenders
in float32 are compared before timing.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Any

import torch

from danalab.errors import MissingExtra, UserError
from danalab.inference import Engine, Request, SamplingParameters
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.huggingface.convert import to_huggingface
from danalab_bench.timing import Say, Work, interleaved, machine, ratios, spread, wall_clock

CONFIG = ModelConfig("qwen3", 256, 4, 4, 64, 768, 4096, 1024, attention_gate=False, qk_norm=True)
PROMPT = 16
"""Tokens of each prompt of the batches."""
ARRIVAL = 0.005
"""Mean time between requests of the trace [s]: all contenders are busy from the first to the last request."""
LARGEST_BATCH = 32
"""Requests that are computed together on the trace."""

ENGINES: dict[str, dict[str, Any]] = {
    "danalab": {},
    "danalab bfloat16": {"weight_dtype": "bfloat16"},
    "danalab int8": {"weight_dtype": "int8"},
    "danalab eager": {"backend": "eager"},
}
"""Contenders -> settings of `Engine`."""


def measure(batches: Sequence[int], tokens: int, requests: int, rounds: int, say: Say) -> dict[str, Any]:
    """Measure batches and the trace; returns values for JSON.

    Args:
        batches: equal prompts at a time. tokens: to decode for each. requests: of the trace; 0: no trace.
    Raises:
        MissingExtra: transformers is not installed.
        UserError: contenders decode different tokens.
    """
    model = build_model(CONFIG, seed=1).eval()
    theirs = _transformers(model)
    rows = [_batch(model, theirs, size, tokens, rounds, say) for size in batches]
    weights = sum(p.numel() for name, p in model.named_parameters() if "embedding" not in name)
    result = {
        "benchmark": "generate", "machine": machine("cpu"), "model": CONFIG.as_dict(), "prompt": PROMPT,
        "tokens": tokens, "rounds": rounds, "batches": rows,
        "memory": _memory(4 * weights, rows[0] if batches and batches[0] == 1 else None),
    }  # fmt: skip
    if requests:
        result["trace"] = _measure_trace(model, theirs, requests, max(1, rounds // 2), say)
    return result


def _transformers(model: Decoder) -> Any:
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "the benchmark of decoding") from None
    settings, weights = to_huggingface(model.config, model.state_dict())
    theirs = Qwen3ForCausalLM(Qwen3Config(**{**settings, "attn_implementation": "sdpa"})).eval()
    theirs.load_state_dict(weights)
    config = theirs.generation_config
    assert config is not None
    config.eos_token_id, config.pad_token_id, config.do_sample = None, 0, False
    return theirs


def _generate(theirs: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Greedy tokens by transformers.generate; prompts of different lengths are padded on the left."""
    width = max(map(len, prompts))
    rows = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        generated = theirs.generate(rows, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens)
    return generated[:, width:].tolist()


def _request(prompt: Sequence[int], tokens: int) -> Request:
    return Request(prompt, SamplingParameters(max_tokens=tokens, temperature=0))


# ---- batches of equal prompts ----


def _batch(
    model: Decoder,
    theirs: Any,
    size: int,
    tokens: int,
    rounds: int,
    say: Say,
) -> dict[str, Any]:
    draw = random.Random(size)
    prompts = [[draw.randrange(CONFIG.vocab_size) for _ in range(PROMPT)]] * size
    work: dict[str, Work] = {"transformers": lambda: _generate(theirs, prompts, tokens)}
    want = _generate(theirs, prompts, tokens)
    for name, settings in ENGINES.items():
        # Without reuse, for the rounds repeat their prompts.
        engine = Engine(model, max_batch_size=size, prefix_reuse=False, **settings)
        work[name] = partial(engine.generate, [_request(prompt, tokens) for prompt in prompts])
        if "weight_dtype" not in settings and [each.tokens for each in work[name]()] != want:
            raise UserError(f"{name} and transformers decode different tokens")
    times = interleaved(work, rounds, wall_clock, warm_up=1)
    row = {
        "batch": size,
        "tokens_per_second": {name: spread([size * tokens / each for each in times[name]]) for name in work},
        "times_faster_than_transformers": {
            name: ratios(times["transformers"], times[name]) for name in work if name != "transformers"
        },
    }
    ratio = {name: each["median"] for name, each in row["times_faster_than_transformers"].items()}
    speed = row["tokens_per_second"]["transformers"]["median"]
    contenders = ", ".join(f"{name} {value:.2f} x" for name, value in ratio.items())
    say(f"batch {size:2}: {contenders} transformers ({speed:.0f} tokens/s)")
    return row


def _memory(bytes_of_weights: int, row: dict[str, Any] | None) -> dict[str, Any]:
    """The share of the memory bandwidth that decoding one sequence uses: it reads all weights for each token."""
    source = torch.ones(bytes_of_weights // 4)
    target = torch.empty_like(source)
    times = [wall_clock(lambda: target.copy_(source)) for _ in range(30)]
    bandwidth = 2 * bytes_of_weights / sorted(times)[len(times) // 2]
    memory: dict[str, Any] = {"weights_bytes": bytes_of_weights, "copy_bytes_per_second": bandwidth}
    if row is not None:
        speed = row["tokens_per_second"]["danalab"]["median"]
        memory["share_of_bandwidth"] = bytes_of_weights * speed / bandwidth
    return memory


# ---- a trace of requests ----


@dataclass
class Served:
    """When the tokens of each request came, in seconds after its arrival."""

    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    """Mean time of a token after the first, of each request."""

    def add(self, arrival: float, first: float, last: float, tokens: int) -> None:
        """Note a request by the times on one clock."""
        self.first.append(first - arrival)
        self.last.append(last - arrival)
        self.between.append((last - first) / max(tokens - 1, 1))


@dataclass(frozen=True)
class Arrival:
    """One request of the trace."""

    at: float
    prompt: list[int]
    tokens: int


def _trace(requests: int) -> list[Arrival]:
    """Poisson arrivals; lengths of prompts 8 to 256 and of answers 8 to 128, log-uniform."""
    draw, at, arrivals = random.Random(0), 0.0, []
    for _ in range(requests):
        at += draw.expovariate(1 / ARRIVAL)
        prompt = [draw.randrange(CONFIG.vocab_size) for _ in range(round(2 ** draw.uniform(3, 8)))]
        arrivals.append(Arrival(at, prompt, round(2 ** draw.uniform(3, 7))))
    return arrivals


def _measure_trace(model: Decoder, theirs: Any, requests: int, rounds: int, say: Say) -> dict[str, Any]:
    trace = _trace(requests)
    total = sum(each.tokens for each in trace)
    work: dict[str, Callable[[], Served]] = {
        "danalab": lambda: _serve(Engine(model, max_batch_size=LARGEST_BATCH), trace),
        "padded batches": lambda: _serve_batches(theirs, trace, LARGEST_BATCH),
        "one after the other": lambda: _serve_batches(theirs, trace, 1),
    }
    served: dict[str, list[Served]] = {name: [] for name in work}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, serve in work.items():
            start = time.perf_counter()
            served[name].append(serve())
            seconds[name].append(time.perf_counter() - start)
    result = {
        "requests": requests, "mean_arrival_seconds": ARRIVAL, "tokens": total,
        "tokens_per_second": {name: spread([total / each for each in seconds[name]]) for name in work},
        "times_faster_than": {name: ratios(seconds[name], seconds["danalab"]) for name in work if name != "danalab"},
        "seconds": {name: _percentiles(served[name]) for name in work},
    }  # fmt: skip
    for name in work:
        speed, first = result["tokens_per_second"][name]["median"], result["seconds"][name]["first_token"]
        say(
            f"trace, {name}: {speed:.0f} tokens/s; first token p50 {first['p50']:.3f} s, p99 {first['p99']:.3f} s"
        )
    return result


def _percentiles(served: Sequence[Served]) -> dict[str, dict[str, float]]:
    columns = {"first_token": "first", "per_token": "between", "last_token": "last"}
    percentiles = {}
    for name, column in columns.items():
        values = [value for each in served for value in getattr(each, column)]
        cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
        percentiles[name] = {"p50": cuts[49], "p99": cuts[98]}
    return percentiles


def _serve(engine: Engine, trace: Sequence[Arrival]) -> Served:
    served, start, waiting = Served(), time.perf_counter(), list(reversed(trace))
    running: dict[int, tuple[Arrival, list[float]]] = {}
    while waiting or engine.busy:
        now = time.perf_counter() - start
        while waiting and waiting[-1].at <= now:
            arrival = waiting.pop()
            running[engine.submit(_request(arrival.prompt, arrival.tokens))] = (arrival, [])
        if not engine.busy:
            time.sleep(max(0.0, waiting[-1].at - now))
            continue
        events = engine.step()
        now = time.perf_counter() - start
        for event in events:
            arrival, times = running[event.request_id]
            times.append(now)
            if event.finish_reason is not None:
                served.add(arrival.at, times[0], now, arrival.tokens)
    return served


def _serve_batches(theirs: Any, trace: Sequence[Arrival], largest: int) -> Served:
    """All waiting requests in one padded batch, as long as its longest answer; tokens come at its end."""
    served, start, waiting = Served(), time.perf_counter(), list(reversed(trace))
    while waiting:
        now = time.perf_counter() - start
        if waiting[-1].at > now:
            time.sleep(waiting[-1].at - now)
            continue
        batch = []
        while waiting and len(batch) < largest and waiting[-1].at <= now:
            batch.append(waiting.pop())
        _generate(theirs, [each.prompt for each in batch], max(each.tokens for each in batch))
        now = time.perf_counter() - start
        for each in batch:
            served.add(each.at, now, now, each.tokens)
    return served

"""Small models on the synthetic language, many at once on one device, with data that are drawn there.

    uniform numbers of each seed -> documents [R, B, L] -> R models by torch.func.vmap -> gradients [R, ...]
    -> clipping of each model -> one optimizer step for all

R models of one shape, which differ by their seed, are one model whose parameters have a leading dimension R: matrices
are to optimizers what stacked experts are, and all else is element-wise. A model alone is trained as the trainer does
it: with blocks compiled and the chunked loss. On a GPU, forward and backward are one CUDA graph where that works.

Shapes: R models (replicas), B sequences of a model's batch, L length.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.data.sources.synthetic import Language
from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer, optimizer_spec
from danalab.optim.schedules import get_schedule
from danalab.scaling import Plan, explicit_dimensions, plan
from danalab.train.config.train_config import TrainConfig
from danalab_bench.timing import synchronize

LANGUAGE = Language()
"""1,024 words, 64 answers to questions about one to four words, documents of 256 tokens."""
END = len(LANGUAGE.vocabulary)
"""Id that ends a document, and begins a row."""
VOCAB = -(-(END + 1) // 64) * 64
HELD_OUT = 1 << 20
"""Seed of the documents of the evaluation."""


@dataclass(frozen=True)
class Job:
    """Models that are trained at once: equal but for their seed, which draws their weights and their documents."""

    opt: str
    d_model: int
    n_layers: int
    n_heads: int
    batch: int
    """Sequences of one model's step."""
    horizon: float
    """Tokens / (20 parameters)."""
    rate: float
    """Factor on the learning rate of the scaling rules."""
    seeds: tuple[int, ...]
    tokens_per_param: float = 20.0
    """Less in a dry run."""

    @property
    def plan(self) -> Plan:
        """By the scaling rules."""
        dims = explicit_dimensions("enoki", self.d_model, self.n_layers, self.n_heads, vocab_size=VOCAB)
        settings: dict[str, Any] = {"seq_len": LANGUAGE.document_tokens, "global_batch": self.batch}
        return plan("enoki", self.opt, dims=dims, tokens_per_param=self.tokens_per_param * self.horizon, **settings)

    @property
    def size(self) -> str:
        """Parameters, for people."""
        return f"{self.plan.total_params / 1e6:.2g}M"

    @property
    def tokens(self) -> int:
        """Of all models together."""
        return self.plan.tokens * len(self.seeds)

    def __str__(self) -> str:
        return f"{self.size} f={self.horizon:g} {self.opt} x{self.rate:g}, {len(self.seeds)} seeds from {self.seeds[0]}"


class OutOfTimeError(Exception):
    """A job cannot end before its deadline."""


def documents(language: Language, u: Tensor) -> Tensor:
    """Documents of a language without copies and noise, int64 [n, length], from uniform numbers [n, length, 2].

    The numbers of `Language.documents` give its documents.
    """
    assert language.copies == language.noise == 0
    (n, length, _), device, words = u.shape, u.device, language.words

    def cumulative(weights: Any) -> Tensor:
        return torch.as_tensor(weights, dtype=torch.float64).cumsum(0).to(device, u.dtype)

    starts = cumulative(language.starts)
    only_words = cumulative(language.starts[:words] / language.starts[:words].sum())
    tokens = torch.empty(n, length, dtype=torch.int64, device=device)
    history = torch.zeros_like(tokens)  # the words so far
    seen = torch.zeros(n, dtype=torch.int64, device=device)
    answering = torch.zeros(n, dtype=torch.bool, device=device)
    for position in range(length):
        table = only_words if position == length - 1 else starts  # a unit of two tokens would not fit: a word
        drawn = torch.searchsorted(table, u[:, position, 0].contiguous(), right=True).clamp_(max=len(table) - 1)
        if position:
            drawn = torch.where(answering, _answers(language, tokens[:, position - 1], history, seen), drawn)
        tokens[:, position] = drawn
        is_word = drawn < words
        history.scatter_(1, seen[:, None], drawn[:, None])  # what is no word is overwritten by the next one
        seen += is_word & ~answering
        answering = ~answering & ~is_word
    return tokens


def _answers(language: Language, marks: Tensor, history: Tensor, seen: Tensor) -> Tensor:
    """Answers to questions, by the hash of `Language`."""
    level = marks - language.words + 1
    key = _mix(_mix(level.clamp(min=0)) ^ language.seed)
    for distance in range(1, language.levels + 1):
        asked = (distance <= level) & (distance <= seen)
        word = history.gather(1, (seen - distance).clamp(min=0)[:, None])[:, 0]
        key = torch.where(asked, _mix(key ^ word), key)
    low, high = key & (2**63 - 1), (key < 0) * (2**63 % language.answers)  # of an unsigned number
    return len(language.vocabulary) - language.answers + (low % language.answers + high) % language.answers


def _mix(value: Tensor) -> Tensor:
    """The finalizer of SplitMix64 on int64."""

    def shifted(x: Tensor, bits: int) -> Tensor:
        return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))

    mixed = value + (0x9E3779B97F4A7C15 - (1 << 64))
    mixed = shifted(mixed, 30) * (0xBF58476D1CE4E5B9 - (1 << 64))
    return shifted(shifted(mixed, 27) * (0x94D049BB133111EB - (1 << 64)), 31)


def rows_of(seeds: Sequence[int], count: int, device: str) -> Iterator[Tensor]:
    """Endless blocks of `count` rows for each seed: [R, count, L + 1], each row one document between two ends."""
    draws = [torch.Generator(device).manual_seed(seed) for seed in seeds]
    length = LANGUAGE.document_tokens - 1
    while True:
        u = torch.stack([torch.rand(count, length, 2, generator=draw, device=device) for draw in draws])
        tokens = documents(LANGUAGE, u.flatten(0, 1)).unflatten(0, (len(seeds), count))
        yield F.pad(tokens, (1, 1), value=END)


class Replicas:
    """Models of one configuration, one per seed; with several their parameters are [R, ...]."""

    def __init__(self, config: ModelConfig, seeds: Sequence[int], device: str):
        models = [build_model(config, seed=seed, device=device) for seed in seeds]
        self.model: Any = models[0]
        self.device, self.several = device, len(seeds) > 1
        if self.several:
            kinds = {name: "experts" if k == "matrix" else k for name, k in self.model.parameter_kinds().items()}
            self.model.parameter_kinds = lambda: kinds
            self.model._check = lambda tokens, start: None  # values cannot be read within vmap
            each = [dict(model.named_parameters()) for model in models]
            for name, p in self.model.named_parameters():
                p.data = torch.stack([named[name].data for named in each])
        self.parameters: list[Tensor] = list(self.model.parameters())

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of each model, [R], on its rows [R, B, L]."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            if not self.several:
                return self.model(inputs[0], targets[0])[0][None]
            return torch.vmap(self._loss)(dict(self.model.named_parameters()), inputs, targets)

    def _loss(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        logits = torch.func.functional_call(self.model, parameters, (inputs,))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def gradients(self, inputs: Tensor, targets: Tensor, clip: float) -> Tensor:
        """Set `grad` of the parameters, for each model with a norm of at most `clip`; returns the losses [R]."""
        losses = self.losses(inputs, targets)
        grads = torch.autograd.grad(losses.sum(), self.parameters)
        first = len(losses)
        norms = torch.stack([g.float().reshape(first, -1).square().sum(1) for g in grads]).sum(0).sqrt()
        factor = (clip / (norms + 1e-6)).clamp(max=1)
        for p, g in zip(self.parameters, grads, strict=True):
            each = factor.view(-1, *[1] * (p.ndim - 1)) if self.several else factor[0]
            # In the parameter's own memory order, which fused optimizers take for granted, and always in one place.
            p.grad = torch.empty_like(p) if p.grad is None else p.grad
            torch.mul(g, each, out=p.grad)
        return losses.detach()


Step = Callable[[Tensor], Tensor]
"""Rows [R, B, L + 1] -> losses [R]; sets the gradients."""


def eager_step(replicas: Replicas, clip: float, rows: Tensor) -> Step:
    """Forward and backward, operation by operation."""
    return lambda rows: replicas.gradients(rows[..., :-1].contiguous(), rows[..., 1:].contiguous(), clip)


def graph_step(replicas: Replicas, clip: float, rows: Tensor) -> Step:
    """The same as one CUDA graph for rows of this shape."""
    place, step = rows.clone(), eager_step(replicas, clip, rows)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(place)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = step(place)

    def replay(rows: Tensor) -> Tensor:
        place.copy_(rows)
        graph.replay()
        return losses

    return replay


def compiled_step(replicas: Replicas, clip: float, rows: Tensor) -> Step:
    """With compiled blocks; a graph where that works, too."""
    for block in replicas.model.blocks:
        block.compile()
    step = eager_step(replicas, clip, rows)
    step(rows)
    try:
        return graph_step(replicas, clip, rows) if rows.is_cuda else step
    except RuntimeError as error:
        warnings.warn(f"no graph of compiled blocks: {first_line(error)}", stacklevel=1)
        return step


WAYS: dict[str, Callable[[Replicas, float, Tensor], Step]] = {
    "eager": eager_step,
    "graph": graph_step,
    "compiled": compiled_step,
}


def first_line(error: BaseException) -> str:
    """What went wrong, in short."""
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:200]}"


def build(job: Job, device: str) -> tuple[Replicas, Any]:
    """(models, their optimizer)."""
    torch.set_float32_matmul_precision("high")
    if device == "cuda":  # the models and graphs before, which would not fit beside these
        gc.collect()
        torch.cuda.empty_cache()
    else:
        torch.set_num_threads(1)  # several jobs at once, and small ones
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap of attention
    planned = job.plan
    config = ModelConfig("enoki", planned.d_model, planned.n_layers, planned.n_heads, planned.head_dim, planned.mlp_dim,
                         VOCAB, LANGUAGE.document_tokens)  # fmt: skip
    replicas = Replicas(config, job.seeds, device)
    known = optimizer_spec(job.opt).settings
    names = [name for name in ("kappa", "delta", "weight_decay", "wd_ts", "decay_bound") if name in known]
    settings = {name: getattr(planned, name) for name in names}
    return replicas, build_optimizer(job.opt, replicas.model, lr=planned.lr * job.rate, **settings)


def time_ways(job: Job, device: str, ways: Sequence[str], seconds: float = 1.0) -> dict[str, Any]:
    """Tokens per second of each way to compute a step, the optimizer's included; an error in its place where it fails.

    Args:
        ways: keys of `WAYS`.
        seconds: time of each, after a warm-up.
    """
    speeds: dict[str, Any] = {}
    for way in ways:
        try:
            speeds[way] = _speed(job, device, way, seconds)
        except Exception as error:  # whatever it is: another way is tried
            speeds[way] = {"error": first_line(error)}
    return speeds


def _speed(job: Job, device: str, way: str, seconds: float) -> dict[str, float]:
    started, steps = time.perf_counter(), 0
    replicas, optimizer = build(job, device)
    rows = next(rows_of(job.seeds, job.batch, device))
    step = WAYS[way](replicas, TrainConfig.grad_clip, rows)

    def some(count: int) -> float:
        for _ in range(count):
            step(rows)
            optimizer.step()
        synchronize(device)
        return time.perf_counter()

    begin = end = some(2)
    while end < begin + seconds:
        end, steps = some(4), steps + 4
    rate = steps * len(job.seeds) * job.batch * LANGUAGE.document_tokens / (end - begin)
    return {"tokens_per_second": rate, "seconds_before": begin - started}


def train_job(
    job: Job, device: str, way: str, deadline: float, held_out: int = 4096, chunk: int = 1 << 17
) -> list[dict[str, Any]]:
    """Train the models of a job; one row per seed.

    Args:
        way: key of `WAYS`.
        deadline: `time.time()` at which the job must have ended.
        held_out: documents of the evaluation.
        chunk: documents that are drawn at once.
    Raises:
        OutOfTimeError: it would end after the deadline; said as soon as the speed is known.
    """
    planned, started = job.plan, time.time()
    replicas, optimizer = build(job, device)
    schedule = get_schedule("linear", planned.steps, planned.warmup, final_div_factor=1e6)
    at_once = max(1, min(planned.steps, chunk // (job.batch * len(job.seeds))))
    blocks = rows_of(job.seeds, at_once * job.batch, device)
    step: Step | None = None
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", float(group["lr"]))
    begin = time.time()
    for number in range(planned.steps):
        if number % at_once == 0:
            block = next(blocks)
        first = number % at_once * job.batch
        rows = block[:, first : first + job.batch]  # pyright: ignore[reportPossiblyUnboundVariable]
        step = WAYS[way](replicas, TrainConfig.grad_clip, rows) if step is None else step
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule(number)
        step(rows)
        optimizer.step()
        if number in (0, 49) or number % 200 == 199:
            synchronize(device)
            now = time.time()
            if number == 0:
                begin = now  # without compilation and capture
            elif now + (now - begin) / number * (planned.steps - number) > deadline:
                raise OutOfTimeError(
                    f"{job}: {planned.steps} steps take {(now - begin) / number * planned.steps:.0f} s"
                )
    synchronize(device)
    seconds = time.time() - started
    losses = evaluate(replicas, held_out, min(held_out, job.batch))
    shared = {**asdict(job), "size": job.size, "params": planned.total_params, "steps": planned.steps,
              "tokens": planned.tokens, "lr": planned.lr * job.rate, "way": way, "seconds": seconds / len(job.seeds),
              "tokens_per_second": job.tokens / seconds, "flops_per_token": planned.flops_per_token}  # fmt: skip
    del shared["seeds"]
    return [
        {**shared, "seed": seed, "loss": loss, "excess": loss and loss - LANGUAGE.entropy}
        for seed, loss in zip(job.seeds, losses, strict=True)
    ]


@torch.no_grad()
def evaluate(replicas: Replicas, count: int, batch: int) -> list[float | None]:
    """Mean loss of each model on the same `count` documents, which no seed is trained on [nats/token]; None: not
    finite."""
    several = len(replicas.parameters[0]) if replicas.several else 1
    rows = next(rows_of([HELD_OUT], count, replicas.device))
    parts = [part.expand(several, -1, -1) for part in rows.split(batch, dim=1)]
    each = torch.stack([replicas.losses(part[..., :-1], part[..., 1:].contiguous()) for part in parts])
    return [loss if math.isfinite(loss) else None for loss in each.double().mean(0).tolist()]

"""Print size, steps, learning rate, weight decay, FLOPs, memory and time of a run; trains nothing."""

import time
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Le

from danalab.cli.training import resolved_run
from danalab.models.config import parameter_count
from danalab.optimizer_facts import facts_of
from danalab.train.config.flags import Answer, setting
from danalab.train.config.train_config import MOST_EPOCHS, REPEATED, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Flags(TrainConfig):
    """Those of `danalab train`, and what a plan adds."""

    title: ClassVar[str] = "plan"

    gpu: str | None = setting(
        None, "Hours on this accelerator (h100, a100, ...); default on each that is known.", main=True
    )
    mfu: Annotated[float, Gt(0), Le(1)] = setting(
        0.4, "Share of the accelerator's peak that training reaches.", main=True
    )


def run(flags: Flags) -> Answer:
    """Print size, steps, learning rate, weight decay, FLOPs, memory and time of a run; trains nothing."""
    from danalab.data.open import is_there, vocabulary_of
    from danalab.hardware import accelerator_hours, hours_in_words, named

    vocabulary = vocabulary_of(flags.source, flags.tokenizer)
    config = resolved_run(flags, vocabulary)
    ranks, steps = flags.nproc or 1, config.iterations
    tokens, flops, own = config.tokens(steps), config.flops(steps), config.optimizer_flops(steps) or 0.0
    hours = accelerator_hours(flops + own, flags.mfu)
    if flags.gpu is not None:
        gpu = named(flags.gpu).name
        hours = {gpu: hours[gpu]}
    wall = {name: value / ranks for name, value in hours.items()}
    tokens_of = getattr(vocabulary, "tokens_per_epoch", None)
    epochs = tokens_of and tokens / tokens_of(config.seq_len)
    speed = _tokens_per_second(config) if flags.gpu is None and ranks == 1 else None
    facts = {
        **config.facts(),
        "memory_gib": config.memory_gib(config.batch_size, ranks),
        "gpu_hours": hours,
        "wall_hours": wall,
        "machine_hours": speed and tokens / speed / 3600,
        "batch_size": config.batch_size,
        "acc_steps": config.acc_steps,
        "data": vocabulary.name,
        "epochs": epochs,
    }
    mode = flags.activation_checkpointing
    how = "no checkpointing" if mode == "none" else f"checkpointing {mode}"
    rows = [
        *_describe(config),
        *(("note", note) for note in config.notes),
        ("compute", f"{flops:.4g} FLOPs ({config.flops_per_token:,} per token)"),
    ]
    memory = facts["memory_gib"]
    shown = f"{memory:.1f}" if memory >= 1 else f"{memory:.2g}"
    if own:
        share = own / (flops + own)
        rows.append(("", f"and {own:.4g} in {config.opt}'s own matrix products: {share:.1%} of a step"))
    rows.append(
        ("memory", f"{shown} GiB at micro-batch {config.batch_size}, bf16 autocast, {how} (estimate)")
    )
    if speed:
        took = hours_in_words(tokens / speed / 3600)
        rows.append(
            ("this machine", f"{took} at {speed:,.0f} tokens/s, measured for a second without the optimizer")
        )
    each = ", ".join(f"{name} {hours_in_words(value)}" for name, value in wall.items())
    together = "" if ranks == 1 else f" on {ranks} devices, without communication"
    if flags.gpu is None and max(wall.values()) < 1 / 3600:
        each = "under a second on each GPU"
    rows.append(("time", f"{each}{together} (estimate: {flags.mfu:.0%} MFU)"))
    where = "ready" if is_there(flags.source, flags.tokenizer) else "not prepared yet"
    about_data = f"{vocabulary.name} ({vocabulary.tokenizer_name}, {vocabulary.vocab_size:,} tokens): {where}"
    rows.append(("data", about_data + (f", {epochs:.4g} epochs" if epochs else "")))
    if epochs and epochs > MOST_EPOCHS:
        rows.append(("warning", REPEATED))
    return Answer(facts, [f"{name:<13} {value}" for name, value in rows])


def _tokens_per_second(config: TrainConfig) -> float | None:
    """Tokens per second of forward and backward passes here, measured for a second; None: it cannot be measured."""
    import torch

    from danalab.models import build_model
    from danalab.train.system.device import choose_device, device_type

    if device_type(config.device) == "cuda" and not torch.cuda.is_available():  # a plan for another machine
        return None
    device = choose_device(config.device)
    largest, work = (1e9, 1e13) if device.type == "cuda" else (3e7, 1e10)  # parameters; FLOPs of a step
    if config.model.exact_params > largest:
        return None
    model = build_model(config.model, seed=0).to(device)
    most = max(1, int(work / config.flops_per_token))
    length = min(config.seq_len, most)
    rows = max(1, min(config.batch_size, most // length))
    tokens = torch.randint(config.vocab_size, (rows, length), device=device)
    began, steps = 0.0, -1
    while steps < 1 or time.perf_counter() < began + 0.5:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, _ = model(tokens, tokens)
        loss.backward()
        steps += 1
        if steps == 0:  # the first one warms up
            began = time.perf_counter()
        loss.item()
    return steps * tokens.numel() / (time.perf_counter() - began)


def _describe(config: TrainConfig) -> list[tuple[str, str]]:
    """Model, parameters, batch, length, optimizer and weight decay as rows of a table."""
    model, sparse = config.model, config.model.sparsity
    keys = "" if model.kv_heads == model.n_heads else f" ({model.kv_heads} for keys and values)"
    parts = f"{model.n_heads} head{'s' * (model.n_heads > 1)} of {model.head_dim}{keys}"
    if model.architecture.oscillators:
        parts = f"{model.n_heads} groups of {model.head_dim} channels, {model.modes} oscillators a channel"
    if model.linear_attention is not None:
        parts += (
            f" in {model.attention_layers} layers and the delta rule in {len(model.linear_attention.layers)}"
        )
    layers = f"{model.n_layers} layer{'s' * (model.n_layers > 1)}"
    rows = [
        (
            "model",
            f"{model.arch}, {parts}, {layers}, d_model {model.d_model}, mlp {model.mlp_dim}",
        ),
    ]
    if sparse is not None:
        shared = f" and {sparse.shared_dim // sparse.expert_dim} shared" if sparse.shared_dim else ""
        counts = f"{sparse.top_k} of {sparse.n_experts}{shared}, {sparse.expert_dim} wide"
        where = f"in {len(sparse.layers)} layers"
        rows.append(
            ("experts", f"{counts}, {where}; {parameter_count(model, active=True):,} parameters active")
        )
    decay = f"{config.weight_decay:.4g}, times the learning rate"
    if config.wd_ts is not None and facts_of(config.opt).decay == "coupled":
        decay = f"{decay}; of all but matrices it falls as 1 / (1 + t / {config.wd_ts:.4g})"
    elif config.wd_ts is not None:
        limit = f"; at most {config.decay_bound:g} times the learning rate" if config.decay_bound else ""
        decay = f"{config.weight_decay:.4g} / (1 + t / {config.wd_ts:.4g}), times the schedule{limit}"
    return [
        *rows,
        ("parameters", f"{model.exact_params:,} ({model.non_emb_params:,} without embeddings)"),
        ("step", f"{config.global_batch} sequences x {config.seq_len} = {config.tokens_per_step:,} tokens"),
        (
            "length",
            f"{config.iterations:,} steps, {config.tokens(config.iterations):,} tokens, warmup {config.warmup_steps} "
            "steps",
        ),
        ("optimizer", f"{config.opt}, peak lr {config.lr:.4g} ({config.lr_source})"),
        ("weight decay", decay),
    ]


VERBS = {"plan": (Flags, run)}

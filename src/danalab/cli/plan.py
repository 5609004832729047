"""What a run would be: dimensions, parameters, steps, LR, weight decay, FLOPs, memory, hours; trains nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from danalab.scaling.shape import EXPERT_SETTINGS, GPT2_VOCAB, RESONANCE_SETTINGS
from danalab.train.config.model_flags import ModelFlags


@dataclass(frozen=True, kw_only=True)
class Flags(ModelFlags):
    opt: str = "adana"
    """Optimizer."""
    vocab_size: int = GPT2_VOCAB
    """Vocabulary, padded [tokens]."""
    seq_len: int = 2048
    """Context length [tokens]."""
    batch_size: int = 32
    """Sequences of one micro-batch on one rank."""
    acc_steps: int = 1
    """Micro-batches a step."""
    nproc: int = 1
    """Data-parallel ranks."""
    global_batch: int | None = None
    """Sequences a step, given directly; default batch-size x acc-steps x nproc."""
    tokens_per_param: float = 20.0
    """Horizon [tokens a parameter]."""
    horizon_basis: str = "total"
    """Parameters that the horizon counts: total or non-emb."""
    iterations: int | None = None
    """Steps, in place of the horizon."""
    warmup_steps: int | None = None
    """Warm-up [steps]; default iterations / 50."""
    lr: float | None = None
    """Peak learning rate; default by the fitted law."""
    kappa: float = 0.85
    """The Dana family's damping exponent."""
    delta: float = 8.0
    """The Dana family's averaging window: beta(t) = 1 - delta / (delta + t)."""
    omega: float = 4.0
    """Weight-decay strength, as in omega / t."""
    weight_decay: float | None = None
    """Default omega / wd_ts (independent) or omega / (lr steps) (coupled)."""
    wd_ts: float | None = None
    """Time scale of the decaying weight decay [steps]; default iterations / 10."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """What a run would be: dimensions, parameters, tokens, steps, LR, weight decay, FLOPs; trains nothing."""
    from danalab.scaling import plan
    from danalab.scaling.estimates import accelerator_hours, memory_gib
    from danalab.train.config.given_size import given_dimensions
    from danalab.train.config.resolve import checked_decay

    planned = plan(
        flags.arch,
        flags.opt,
        flags.heads,
        dims=given_dimensions(flags, flags.vocab_size),
        seq_len=flags.seq_len,
        batch_size=flags.batch_size,
        acc_steps=flags.acc_steps,
        world_size=flags.nproc,
        global_batch=flags.global_batch,
        vocab_size=flags.vocab_size,
        n_kv_heads=flags.n_kv_heads,
        attention_gate=flags.attention_gate,
        tied_head=flags.tied_head,
        kappa=flags.kappa,
        delta=flags.delta,
        omega=flags.omega,
        tokens_per_param=flags.tokens_per_param,
        horizon_basis=flags.horizon_basis,
        iterations=flags.iterations,
        warmup_steps=flags.warmup_steps,
        lr=flags.lr,
        weight_decay=flags.weight_decay,
        wd_ts=flags.wd_ts,
        settings={
            name: getattr(flags, name) for name in (*EXPERT_SETTINGS, *RESONANCE_SETTINGS, "full_attention_interval")
        },
    )
    planned, about_decay = checked_decay(planned, flags.weight_decay)
    memory = memory_gib(planned, flags.batch_size)
    hours = accelerator_hours(planned.flops)
    if flags.json:
        json.dump({**planned.as_dict(), "memory_gib": memory, "gpu_hours": hours}, sys.stdout)
        print()
        return
    decay = (
        f"{planned.weight_decay:.6g} / (1 + t / {planned.wd_ts:g}), times the schedule"
        if planned.wd_ts is not None
        else f"{planned.weight_decay:.6g}, times the learning rate"
    )
    keys = "" if planned.n_kv_heads == planned.n_heads else f" ({planned.n_kv_heads} for keys and values)"
    parts = f"{planned.n_heads} heads of {planned.head_dim}{keys}"
    if planned.num_frequencies is not None:
        modes = planned.num_frequencies // planned.n_heads
        parts = f"{planned.n_heads} groups of {planned.head_dim} channels, {modes} oscillators a channel"
    if flags.conv_width:
        parts += f" behind convolutions of {flags.conv_width} tokens"
    if flags.learned_positions:
        parts += ", learned positions"
    experts = []
    if planned.n_experts is not None:
        shared = f" and {planned.n_shared_experts} shared" if planned.n_shared_experts else ""
        which = f"{planned.top_k} of {planned.n_experts}{shared}, {planned.expert_dim} wide"
        active = f"{planned.active_params:,} parameters active"
        experts = [("experts", f"{which}, in {planned.sparse_layers} layers; {active}")]
    if planned.delta_layers:
        parts += f" in {planned.n_layers - planned.delta_layers} layers and the delta rule in {planned.delta_layers}"
    rows = [
        ("model", f"{planned.arch}, {parts}, {planned.n_layers} layers, "
                  f"d_model {planned.d_model}, mlp {planned.mlp_dim}"),
        *experts,
        ("parameters", f"{planned.exact_params:,} as built; size law {planned.total_params:,} total, "
                       f"{planned.non_emb_params:,} without embeddings"),
        ("step", f"{planned.global_batch} sequences x {planned.seq_len} = {planned.tokens_per_step:,} tokens"),
        ("horizon", f"{planned.steps:,} steps, {planned.tokens:,} tokens, warm-up {planned.warmup} steps"),
        ("optimizer", f"{planned.opt}, peak lr {planned.lr:.6e} ({planned.lr_source})"),
        ("weight decay", decay),
        *(("", note) for note in about_decay),
        ("compute", f"{planned.flops:.4g} FLOPs ({planned.flops_per_token:,} a token)"),
        ("memory", f"{memory:.1f} GiB at micro-batch {flags.batch_size}, bf16 autocast, no checkpointing (estimate)"),
        ("hours", ", ".join(f"{name} {value:.2g}" for name, value in hours.items()) + " (estimate: 40% MFU)"),
    ]  # fmt: skip
    for name, value in rows:
        print(f"{name:<13} {value}")

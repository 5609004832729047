"""Print size, steps, learning rate, weight decay, FLOPs, memory and time of a run; trains nothing."""

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Gt, Le

from danalab.cli.training import resolved_run
from danalab.errors import UserError
from danalab.models.config import GPT2_VOCAB
from danalab.optimizer_facts import OMEGA, canonical_name, facts_of, warmup_steps
from danalab.scaling.learning_rate import decay_factor, largest_decay, law_rate
from danalab.train.config.flags import Answer, Count, Positive, setting
from danalab.train.config.train_config import MOST_EPOCHS, REPEATED, TrainConfig

if TYPE_CHECKING:
    from danalab.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Flags(TrainConfig):
    """Those of `danalab train`, and what a plan adds."""

    title: ClassVar[str] = "plan"

    params: Count | None = setting(
        None,
        "Parameters of a model of your own, without embeddings and head: prints rate, warmup and weight decay for it; "
        "with --step-tokens and --iterations.",
        main=True,
    )
    step_tokens: Count | None = setting(
        None,
        "With --params: tokens of an optimizer step, over all ranks.",
        main=True,
        aliases=("tokens-per-step",),
    )
    gpu: str | None = setting(
        None, "Hours on this accelerator (h100, a100, ...); default on each that is known.", main=True
    )
    mfu: Annotated[float, Gt(0), Le(1)] = setting(
        0.4, "Share of the accelerator's peak that training reaches.", main=True
    )
    dollars_per_hour: Positive | None = setting(
        None, "Price of a device [$ an hour]; adds the cost; default a rough one of --gpu.", main=True
    )


def run(flags: Flags) -> Answer:
    """Print size, steps, learning rate, weight decay, FLOPs, memory and time of a run; trains nothing."""
    if flags.params is not None or flags.step_tokens is not None:
        return _own_model(flags)
    from danalab.hardware import accelerator_hours, hours_in_words, named

    given = TrainConfig(**{field.name: getattr(flags, field.name) for field in fields(TrainConfig)})
    vocabulary, about_data = _vocabulary(given)
    config = resolved_run(given, vocabulary)
    ranks, steps = flags.nproc or 1, config.iterations
    tokens, flops, own = config.tokens(steps), config.flops(steps), config.optimizer_flops(steps) or 0.0
    memory = config.memory_gib(config.batch_size, ranks)
    hours = accelerator_hours(flops + own, flags.mfu)
    price = flags.dollars_per_hour
    if flags.gpu is not None:
        gpu = named(flags.gpu)
        hours = {gpu.name: hours[gpu.name]}
        price = price or gpu.dollars_per_hour
    costs = None if price is None else {name: value * price for name, value in hours.items()}
    wall = {name: value / ranks for name, value in hours.items()}
    tokens_of = getattr(vocabulary, "tokens_per_epoch", None)
    epochs = tokens_of and tokens / tokens_of(config.seq_len)
    speed = _tokens_per_second(config) if flags.gpu is None and ranks == 1 else None
    facts = {
        **config.facts(),
        "memory_gib": memory,
        "gpu_hours": hours,
        "wall_hours": wall,
        "machine_hours": speed and tokens / speed / 3600,
        "dollars": costs,
        "batch_size": config.batch_size,
        "acc_steps": config.acc_steps,
        "data": vocabulary.name,
        "epochs": epochs,
    }
    mode = given.activation_checkpointing
    how = "no checkpointing" if mode == "none" else f"checkpointing {mode}"
    rows = [
        *_describe(config),
        *(("note", note) for note in config.notes),
        ("compute", f"{flops:.4g} FLOPs ({config.flops_per_token:,} per token)"),
    ]
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
    if ranks > 1:
        rows.append(("device-hours", ", ".join(f"{name} {value:.4g}" for name, value in hours.items())))
    if costs is not None:
        rough = "" if flags.dollars_per_hour else ", a rough price on demand; --dollars-per-hour takes yours"
        listed = ", ".join(f"{name} {value:,.2f}" for name, value in costs.items())
        rows.append(("cost [$]", f"{listed} at {price:g} $ an hour{rough}"))
    rows.append(("data", about_data + (f", {epochs:.4g} epochs" if epochs else "")))
    if epochs and epochs > MOST_EPOCHS:
        rows.append(("warning", REPEATED))
    return Answer(facts, [f"{name:<13} {value}" for name, value in rows])


def _tokens_per_second(config: TrainConfig) -> float | None:
    """Tokens per second of forward and backward passes here, measured for a second; None: the model is too large."""
    import torch

    from danalab.models import build_model

    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    largest, work = (1e9, 1e13) if device.type == "cuda" else (3e7, 1e10)  # parameters; FLOPs of a step
    usable = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())
    if not usable or config.model.exact_params > largest:
        return None
    model = build_model(config.model, seed=0).to(device)
    most = max(1, int(work / config.flops_per_token))
    length = min(config.seq_len, most)
    rows = max(1, min(config.batch_size, most // length))
    tokens = torch.randint(config.vocab_size, (rows, length), device=device)
    began, steps = 0.0, -1
    while steps < 1 or time.perf_counter() < began + 0.5:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.float(), tokens.flatten())
        loss.backward()
        steps += 1
        if steps == 0:  # the first one warms up
            began = time.perf_counter()
        loss.item()
    return steps * tokens.numel() / (time.perf_counter() - began)


def _vocabulary(config: TrainConfig) -> "tuple[Vocabulary, str]":
    """(that of a run's data or, for a folder that is not here, of the rules' corpus; a sentence on it)."""
    from danalab.data.open import is_there, vocabulary_of

    where, source, least = "not prepared yet", config.source, None
    if is_there(source, config.tokenizer):
        where = "ready"
    elif "/" in source and "," not in source and not Path(source).exists():
        where = f"the corpus of {config.arch}'s rules; {source} is not here"
        source, least = replace(config, data=None, heads=1, d_model=None, n_layers=None).source, 1
    found = vocabulary_of(source, config.tokenizer)
    if least is not None:
        found = replace(found, least_vocab_size=least)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found, f"{found.name} ({found.tokenizer_name}, {found.vocab_size:,} tokens): {where}"


def _own_model(flags: Flags) -> Answer:
    """Rate, warmup and weight decay for a model that is not ours; as for 20 tokens per parameter."""
    from danalab.train.config.resolve import decay_of

    if flags.params is None or flags.step_tokens is None or flags.iterations is None:
        raise UserError("a model of your own needs all of --params, --tokens-per-step and --iterations")
    opt, steps = canonical_name(flags.opt), flags.iterations
    omega = OMEGA if flags.omega is None else flags.omega
    lr, source = law_rate(flags.arch, opt, flags.params, flags.kappa, flags.step_tokens)
    factor = decay_factor(flags.arch, opt, flags.params, flags.kappa, max(1, flags.step_tokens // 2048))
    decay, wd_ts = decay_of(opt, omega, steps, lr * factor)
    if facts_of(opt).decay == "coupled":
        decay = min(decay, largest_decay(opt))
    warmup = warmup_steps(steps) if flags.warmup_steps is None else flags.warmup_steps
    facts = {"lr": lr, "lr_source": source, "warmup": warmup, "weight_decay": decay, "wd_ts": wd_ts}
    given = f"weight_decay={decay:.4g}" if wd_ts is None else f"omega={omega:g}, horizon={steps}"
    lines = [
        f"model         {flags.params:,} parameters without embeddings, {flags.step_tokens:,} tokens per step",
        f"optimizer     {opt}, peak lr {lr:.4g} ({source}); sweep 0.5, 1 and 2 times it",
        f"length        {steps:,} steps, warmup {warmup} steps; rate and decay as for 20 tokens per parameter",
        f"weight decay  {_decay(decay, wd_ts, 0.0)}",
        f'in code       build_optimizer("{opt}", model, lr={lr:.4g}, {given})',
    ]
    return Answer(facts, lines)


def _decay(decay: float, wd_ts: float | None, bound: float) -> str:
    """A weight decay in words."""
    if wd_ts is None:
        return f"{decay:.4g}, times the learning rate"
    limit = f"; at most {bound:g} times the learning rate" if bound else ""
    return f"{decay:.4g} / (1 + t / {wd_ts:.4g}), times the schedule{limit}"


def _describe(config: TrainConfig) -> list[tuple[str, str]]:
    """Model, parameters, batch, length, optimizer and weight decay as rows of a table."""
    model, sparse = config.model, config.model.sparsity
    keys = "" if model.kv_heads == model.n_heads else f" ({model.kv_heads} for keys and values)"
    parts = f"{model.n_heads} head{'s' * (model.n_heads > 1)} of {model.head_dim}{keys}"
    if model.architecture.oscillators:
        parts = f"{model.n_heads} groups of {model.head_dim} channels, {model.modes} oscillators a channel"
    if model.learned_positions:
        parts += ", learned positions"
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
        which = f"{sparse.top_k} of {sparse.n_experts}{shared}, {sparse.expert_dim} wide"
        where = f"in {len(sparse.layers)} layers; {model.active_params:,} parameters active"
        rows.append(("experts", f"{which}, {where}"))
    shape = "" if model.vocab_size == GPT2_VOCAB else f", vocabulary {model.vocab_size:,}"
    return [
        *rows,
        ("parameters", f"{model.exact_params:,}{shape} ({model.non_emb_params:,} without embeddings)"),
        ("step", f"{config.global_batch} sequences x {config.seq_len} = {config.tokens_per_step:,} tokens"),
        (
            "length",
            f"{config.iterations:,} steps, {config.tokens(config.iterations):,} tokens, warmup {config.warmup_steps} "
            "steps",
        ),
        ("optimizer", f"{config.opt}, peak lr {config.lr:.4g} ({config.lr_source})"),
        ("weight decay", _decay(config.weight_decay, config.wd_ts, config.decay_bound)),
    ]


VERBS = {"plan": (Flags, run)}

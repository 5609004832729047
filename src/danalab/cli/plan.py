"""Print size, steps, learning rate, weight decay, FLOPs, memory and hours of a run; trains nothing."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Gt, Le

from danalab.cli._shared.options import JsonFlags
from danalab.cli.training import resolved_run
from danalab.errors import UserError
from danalab.models.config import GPT2_VOCAB
from danalab.optimizer_facts import OMEGA, canonical_name, facts_of, warmup_steps
from danalab.scaling.learning_rate import decay_lr, largest_decay, law_rate
from danalab.scaling.plan import decay_of
from danalab.train.config.fields import Count, Positive, setting
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    from danalab.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, TrainConfig):
    """Those of `danalab train`, and what a plan adds."""

    title: ClassVar[str] = ""

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


def run(flags: Flags) -> None:
    """Print size, steps, learning rate, weight decay, FLOPs, memory and hours of a run; trains nothing."""
    if flags.params is not None or flags.step_tokens is not None:
        _print_own_model(flags)
        return
    from danalab.hardware import accelerator_hours, named

    given = TrainConfig(**{field.name: getattr(flags, field.name) for field in fields(TrainConfig)})
    vocabulary, about_data = _vocabulary(given)
    config = resolved_run(given, vocabulary)
    planned, ranks = config.planned, flags.nproc or 1
    memory = config.memory_gib(config.batch_size, ranks)
    hours = accelerator_hours(planned.total_flops, flags.mfu)
    price = flags.dollars_per_hour
    if flags.gpu is not None:
        gpu = named(flags.gpu)
        hours = {gpu.name: hours[gpu.name]}
        price = price or gpu.dollars_per_hour
    costs = None if price is None else {name: value * price for name, value in hours.items()}
    wall = {name: value / ranks for name, value in hours.items()}
    told = {
        **planned.as_dict(),
        "memory_gib": memory,
        "gpu_hours": hours,
        "wall_hours": wall,
        "dollars": costs,
    }
    told |= {"batch_size": config.batch_size, "acc_steps": config.acc_steps, "data": vocabulary.name}
    if flags.print_json(told):
        return
    mode = given.activation_checkpointing
    how = "no checkpointing" if mode == "none" else f"checkpointing {mode}"
    rows = [
        *_describe(config),
        *(("note", note) for note in config.notes),
        ("compute", f"{planned.flops:.4g} FLOPs ({planned.flops_per_token:,} per token)"),
    ]
    if own := planned.optimizer_flops:
        share = own / planned.total_flops
        rows.append(("", f"and {own:.4g} in {planned.opt}'s own matrix products: {share:.1%} of a step"))
    rows += [
        ("memory", f"{memory:.1f} GiB at micro-batch {config.batch_size}, bf16 autocast, {how} (estimate)"),
        *_time(hours, costs, price, flags),
        ("data", about_data),
    ]
    for name, value in rows:
        print(f"{name:<13} {value}")


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


def _print_own_model(flags: Flags) -> None:
    """Rate, warmup and weight decay for a model that is not ours; as for 20 tokens per parameter."""
    if flags.params is None or flags.step_tokens is None or flags.iterations is None:
        raise UserError("a model of your own needs all of --params, --tokens-per-step and --iterations")
    opt, steps, omega = (
        canonical_name(flags.opt),
        flags.iterations,
        OMEGA if flags.omega is None else flags.omega,
    )
    lr, source = law_rate(flags.arch, opt, flags.params, flags.kappa, flags.step_tokens)
    rate = decay_lr(flags.arch, opt, lr, flags.params, flags.kappa, max(1, flags.step_tokens // 2048))
    decay, wd_ts = decay_of(opt, omega, steps, rate)
    if facts_of(opt).decay == "coupled":
        decay = min(decay, largest_decay(opt))
    warmup = warmup_steps(steps) if flags.warmup_steps is None else flags.warmup_steps
    told = {"lr": lr, "lr_source": source, "warmup": warmup, "weight_decay": decay, "wd_ts": wd_ts}
    if flags.print_json(told):
        return
    given = f"weight_decay={decay:.4g}" if wd_ts is None else f"omega={omega:g}, horizon={steps}"
    print(
        f"model         {flags.params:,} parameters without embeddings, {flags.step_tokens:,} tokens per step"
    )
    print(f"optimizer     {opt}, peak lr {lr:.3e} ({source}); sweep 0.5, 1 and 2 times it")
    print(
        f"length        {steps:,} steps, warmup {warmup} steps; rate and decay as for 20 tokens per parameter"
    )
    print(f"weight decay  {_decay(decay, wd_ts, 0.0)}")
    print(f'in code       build_optimizer("{opt}", model, lr={lr:.3e}, {given})')


def _time(
    hours: dict[str, float], costs: dict[str, float] | None, price: float | None, flags: Flags
) -> list[tuple[str, str]]:
    """Device-hours, wall hours of several devices, and costs as rows of a table."""
    estimate = f" (estimate: {flags.mfu:.0%} MFU)"

    def listed(values: dict[str, float], digits: str = ".2g") -> str:
        return ", ".join(f"{name} {value:{digits}}" for name, value in values.items())

    ranks = flags.nproc or 1
    rows = [("device-hours" if ranks > 1 else "hours", listed(hours) + estimate)]
    if ranks > 1:
        wall = {name: value / ranks for name, value in hours.items()}
        rows.append(("wall hours", f"{listed(wall)} on {ranks} devices, without communication"))
    if costs is not None:
        rough = "" if flags.dollars_per_hour else ", a rough price on demand; --dollars-per-hour takes yours"
        rows.append(("cost [$]", f"{listed(costs, ',.2f')} at {price:g} $ an hour{rough}"))
    return rows


def _decay(decay: float, wd_ts: float | None, bound: float) -> str:
    """A weight decay in words."""
    if wd_ts is None:
        return f"{decay:.6g}, times the learning rate"
    limit = f"; at most {bound:g} times the learning rate" if bound else ""
    return f"{decay:.6g} / (1 + t / {wd_ts:g}), times the schedule{limit}"


def _describe(config: TrainConfig) -> list[tuple[str, str]]:
    """Model, parameters, batch, length, optimizer and weight decay as rows of a table."""
    model, sparse = config.model, config.model.sparsity
    keys = "" if model.kv_heads == model.n_heads else f" ({model.kv_heads} for keys and values)"
    parts = f"{model.n_heads} heads of {model.head_dim}{keys}"
    if model.architecture.oscillators:
        parts = f"{model.n_heads} groups of {model.head_dim} channels, {model.modes} oscillators a channel"
    if model.learned_positions:
        parts += ", learned positions"
    if model.linear_attention is not None:
        parts += (
            f" in {model.attention_layers} layers and the delta rule in {len(model.linear_attention.layers)}"
        )
    rows = [
        (
            "model",
            f"{model.arch}, {parts}, {model.n_layers} layers, d_model {model.d_model}, mlp {model.mlp_dim}",
        ),
    ]
    if sparse is not None:
        shared = f" and {sparse.shared_dim // sparse.expert_dim} shared" if sparse.shared_dim else ""
        which = f"{sparse.top_k} of {sparse.n_experts}{shared}, {sparse.expert_dim} wide"
        where = f"in {len(sparse.layers)} layers; {model.active_params:,} parameters active"
        rows.append(("experts", f"{which}, {where}"))
    size_law = f"size law {model.total_params:,} total, {model.non_emb_params:,} without embeddings"
    shape = "" if model.vocab_size == GPT2_VOCAB else f", vocabulary {model.vocab_size:,}"
    return [
        *rows,
        ("parameters", f"{model.exact_params:,} as built{shape}; {size_law}"),
        ("step", f"{config.global_batch} sequences x {config.seq_len} = {config.tokens_per_step:,} tokens"),
        (
            "length",
            f"{config.iterations:,} steps, {config.tokens(config.iterations):,} tokens, warmup {config.warmup_steps} "
            "steps",
        ),
        ("optimizer", f"{config.opt}, peak lr {config.lr:.6e} ({config.lr_source})"),
        ("weight decay", _decay(config.weight_decay, config.wd_ts, config.decay_bound)),
    ]

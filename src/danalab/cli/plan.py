"""What a run would be: dimensions, parameters, steps, LR, weight decay, FLOPs, memory, hours; trains nothing."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Gt, Le

from danalab.cli._shared.options import JsonFlags
from danalab.cli.training import resolved_run
from danalab.errors import UserError
from danalab.scaling.optimizers import OMEGA
from danalab.scaling.plan import Plan, own_model
from danalab.train.config.fields import Count, Positive
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    from danalab.data.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, TrainConfig):
    """Those of `danalab train`, and what a plan adds."""

    title: ClassVar[str] = ""

    params: Count | None = None
    """Parameters of a model of your own, without embeddings and head: prints rate, warm-up and weight decay for it;
    with --tokens-per-step and --iterations."""
    tokens_per_step: Count | None = None
    """With --params: tokens of an optimizer step, over all ranks."""
    gpu: str | None = None
    """Hours on this accelerator (h100, a100, ...); default on each that is known."""
    mfu: Annotated[float, Gt(0), Le(1)] = 0.4
    """Share of the accelerator's peak that training reaches."""
    dollars_per_hour: Positive | None = None
    """Price of a device [$ an hour]; adds the cost; default a rough one of --gpu."""


def run(flags: Flags) -> None:
    """What a run would be: dimensions, parameters, tokens, steps, LR, weight decay, FLOPs; trains nothing."""
    if flags.params is not None or flags.tokens_per_step is not None:
        _print_own_model(flags)
        return
    from danalab.scaling.hardware import accelerator_hours, named
    from danalab.train.config.run_spec import run_memory_gib

    config = TrainConfig(**{field.name: getattr(flags, field.name) for field in fields(TrainConfig)})
    vocabulary, about_data = _vocabulary(config)
    spec = resolved_run(config, vocabulary)
    planned, micro_batch, ranks = spec.plan, spec.budget.batch_size, flags.nproc or 1
    memory = run_memory_gib(spec, micro_batch, ranks)
    hours = accelerator_hours(planned.total_flops, flags.mfu)
    price = flags.dollars_per_hour
    if flags.gpu is not None:
        gpu = named(flags.gpu)
        hours = {gpu.name: hours[gpu.name]}
        price = price or gpu.dollars_per_hour
    costs = None if price is None else {name: value * price for name, value in hours.items()}
    acc_steps = spec.config.acc_steps or 1
    wall = {name: value / ranks for name, value in hours.items()}
    told = {**planned.as_dict(), "memory_gib": memory, "gpu_hours": hours, "wall_hours": wall, "dollars": costs}
    told |= {"batch_size": micro_batch, "acc_steps": acc_steps, "data": vocabulary.name}
    if flags.print_json(told):
        return
    mode = config.activation_checkpointing
    how = "no checkpointing" if mode == "none" else f"checkpointing {mode}"
    rows = [
        *_describe(planned, flags),
        *(("", note) for note in spec.notes),
        ("compute", f"{planned.flops:.4g} FLOPs ({planned.flops_per_token:,} per token)"),
        *_optimizers_share(planned),
        ("memory", f"{memory:.1f} GiB at micro-batch {micro_batch}, bf16 autocast, {how} (estimate)"),
        *_time(hours, costs, price, flags),
        ("data", about_data),
    ]
    for name, value in rows:
        print(f"{name:<13} {value}")


def _vocabulary(config: TrainConfig) -> "tuple[Vocabulary, str]":
    """(that of a run's data or, for a folder that is not here, of the rules' corpus; a sentence on it)."""
    from danalab.data.open import is_there, vocabulary_of

    where, source = "not prepared yet", config.source
    if is_there(source, config.tokenizer):
        where = "here"
    elif "/" in source and "," not in source and not Path(source).exists():
        where = f"the corpus of {config.arch}'s rules; {source} is not here"
        source = replace(config, data=None, heads=1, d_model=None, n_layers=None).source
    found = vocabulary_of(source, config.tokenizer)
    if where.startswith("the corpus"):
        found = replace(found, least_vocab_size=1)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found, f"{found.name}, vocabulary of {found.vocab_size:,} ({found.tokenizer_name}): {where}"


def _optimizers_share(planned: Plan) -> list[tuple[str, str]]:
    own = planned.optimizer_flops
    if own is None:
        return [("", f"without the matrix products of {planned.opt} itself, which are not known")]
    share = own / planned.total_flops
    return [("", f"and {own:.4g} in {planned.opt}'s own matrix products: {share:.1%} of a step")] if own else []


def _print_own_model(flags: Flags) -> None:
    from danalab.scaling.optimizers import warmup_steps

    if flags.params is None or flags.tokens_per_step is None or flags.iterations is None:
        raise UserError("a model of your own needs all of --params, --tokens-per-step and --iterations")
    steps, omega = flags.iterations, OMEGA if flags.omega is None else flags.omega
    peak, decay, wd_ts = own_model(
        flags.params, flags.opt, flags.tokens_per_step, steps, arch=flags.arch, kappa=flags.kappa, omega=omega
    )
    warmup = warmup_steps(steps) if flags.warmup_steps is None else flags.warmup_steps
    told = {"lr": peak.lr, "lr_source": peak.source, "warmup": warmup, "weight_decay": decay, "wd_ts": wd_ts}
    if flags.print_json(told):
        return
    how = ", times the learning rate" if wd_ts is None else f" / (1 + t / {wd_ts:g}), times the schedule"
    given = f"weight_decay={decay:.4g}" if wd_ts is None else f"omega={omega:g}, horizon={steps}"
    print(f"model         {flags.params:,} parameters without embeddings, {flags.tokens_per_step:,} tokens per step")
    print(f"optimizer     {flags.opt}, peak lr {peak.lr:.3e} ({peak.source}); sweep 0.5, 1 and 2 times it")
    print(f"horizon       {steps:,} steps, warm-up {warmup} steps; rate and decay as for 20 tokens per parameter")
    print(f"weight decay  {decay:.6g}{how}")
    print(f'in code       build_optimizer("{flags.opt}", model, lr={peak.lr:.3e}, {given})')


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


def _describe(planned: Plan, flags: Flags) -> list[tuple[str, str]]:
    """Model, parameters, batch, length, optimizer and weight decay as rows of a table."""
    decay = f"{planned.weight_decay:.6g}, times the learning rate"
    if planned.wd_ts is not None:
        decay = f"{planned.weight_decay:.6g} / (1 + t / {planned.wd_ts:g}), times the schedule"
        decay += f"; at most {planned.decay_bound:g} times the learning rate" if planned.decay_bound else ""
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
    return [
        ("model", f"{planned.arch}, {parts}, {planned.n_layers} layers, "
                  f"d_model {planned.d_model}, mlp {planned.mlp_dim}"),
        *experts,
        ("parameters", f"{planned.exact_params:,} as built; size law {planned.total_params:,} total, "
                       f"{planned.non_emb_params:,} without embeddings"),
        ("step", f"{planned.global_batch} sequences x {planned.seq_len} = {planned.tokens_per_step:,} tokens"),
        ("horizon", f"{planned.steps:,} steps, {planned.tokens:,} tokens, warm-up {planned.warmup} steps"),
        ("optimizer", f"{planned.opt}, peak lr {planned.lr:.6e} ({planned.lr_source})"),
        ("weight decay", decay),
    ]  # fmt: skip

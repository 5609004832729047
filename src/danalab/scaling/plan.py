"""The plan of a run: from heads, optimizer and batch to steps, learning rate, weight decay and FLOPs.

tokens per step = global batch x seq_len          steps   = floor(20 x total parameters / tokens per step)
warm-up         = `warmup_steps`                  lr      = a (b + P)^d, see `small_run_rate`, x f^h: `at_horizon`
weight decay    = omega / wd_ts, wd_ts = steps / 10     independent: times the schedule, not the peak lr
                = omega / (lr x steps)                  coupled: AdamW and most others; Manau also has wd_ts = steps
                  at most `largest_decay` x the peak lr, in both cases; omega = 4 sqrt(f) where h is measured

`plan` takes these steps for arithmetic alone, `danalab.train.config.resolve` for a run: dimensions -> `budget_of` ->
`law_rate` -> `decay_of` -> Plan.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

from danalab.errors import UserError
from danalab.scaling.dimensions import Dimensions, check_resonance, dimensions, flops_per_token
from danalab.scaling.learning_rate import (
    CHINCHILLA,
    HorizonCorrection,
    PeakRate,
    at_horizon,
    decay_lr,
    horizon_factors,
    largest_decay,
    small_run_rate,
)
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.scaling.optimizers import DELTA, KAPPA, OMEGA, canonical_name, facts_of
from danalab.scaling.optimizers import warmup_steps as usual_warmup
from danalab.scaling.shape import GPT2_VOCAB

_SHAPE = (
    "arch", "n_heads", "n_layers", "d_model", "head_dim", "mlp_dim", "vocab_size", "attention_gate", "n_kv_heads",
    "num_frequencies", "tied_head", "non_emb_params", "total_params", "exact_params", "active_params", "n_experts",
    "top_k", "expert_dim", "n_shared_experts", "sparse_layers", "delta_layers",
)  # fmt: skip
"""Attributes of `Dimensions` that `Plan.as_dict` shows."""


@dataclass(frozen=True, kw_only=True)
class TrainingBudget:
    """Batch and length of a run."""

    seq_len: int
    """Tokens of a training sequence."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    steps: int
    warmup: int
    """Steps."""
    tokens: int
    """Tokens of the run."""
    flops_per_token: int
    flops: int
    """Training FLOPs of the model in the whole run."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step, over all ranks and micro-batches."""
        return self.global_batch * self.seq_len


@dataclass(frozen=True, kw_only=True)
class OptimizerPlan:
    """An optimizer with its learning rate and weight decay."""

    opt: str
    peak: PeakRate
    kappa: float
    """The Dana family's, which the laws of the learning rate are for."""
    delta: float
    omega: float
    """Strength of weight decay at horizon 1."""
    weight_decay: float
    wd_ts: float | None
    """Time scale of the decaying weight decay [steps]; None: constant decay, coupled to the learning rate."""
    decay_bound: float
    """The largest weight decay, times the peak learning rate; 0: no bound. A coupled `weight_decay` contains it."""
    optimizer_flops: float
    """FLOPs of the optimizer's own matrix products in the whole run."""

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.peak.lr


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run with every number resolved: `plan.n_layers`, `plan.steps`, `plan.lr`, `plan.lr_source`, ... are
    those of its parts and of the peak learning rate."""

    dims: Dimensions
    """The model; `seq_len` is the length of its context."""
    budget: TrainingBudget
    optimizer: OptimizerPlan

    def __getattr__(self, name: str) -> Any:
        if name in ("dims", "budget", "optimizer") or name.startswith("__"):  # of a copy that has no fields yet
            raise AttributeError(name)
        if name.startswith("lr_"):
            return getattr(self.optimizer.peak, name[3:])
        part = next((part for part in (self.budget, self.optimizer) if hasattr(part, name)), self.dims)
        return getattr(part, name)

    @property
    def total_flops(self) -> float:
        """The FLOPs of the model and of the optimizer's own matrix products."""
        return self.budget.flops + self.optimizer.optimizer_flops

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in one level."""
        budget = {each.name: getattr(self.budget, each.name) for each in fields(TrainingBudget)}  # a run's has more
        own = budget | {"tokens_per_step": self.tokens_per_step} | vars(self.optimizer)
        rate = {f"lr_{name}": value for name, value in vars(own.pop("peak")).items() if name != "lr"}
        return {name: getattr(self.dims, name) for name in _SHAPE} | own | {"lr": self.lr, **rate}


@dataclass(frozen=True)
class PlanRequest:
    """What `plan` is asked for; None is automatic."""

    arch: str
    opt: str
    heads: int | None = None
    """Size by the architecture's rule, with `n_kv_heads`; or give `dims`."""
    _: KW_ONLY
    dims: Dimensions | None = None
    """Explicit dimensions."""
    vocab_size: int = GPT2_VOCAB
    n_kv_heads: int | None = None
    attention_gate: bool | None = None
    """None: as in `dims`, or the architecture."""
    tied_head: bool | None = None
    context_len: int | None = None
    """Context of the model; default `seq_len`."""
    settings: Mapping[str, Any] | None = None
    """Further fields of `Dimensions`, e.g. `EXPERT_SETTINGS`."""

    seq_len: int = 2048
    batch_size: int = 32
    """Sequences of one micro-batch on one rank; x `acc_steps` x `world_size` = global batch."""
    acc_steps: int = 1
    world_size: int = 1
    global_batch: int | None = None
    """Sequences per step, in place of the product."""
    iterations: int | None = None
    """Steps; default by `tokens_per_param`."""
    tokens_per_param: float = CHINCHILLA
    horizon_basis: str = "total"
    """Parameters that `tokens_per_param` counts: "total" or "non-emb"."""
    warmup_steps: int | None = None

    lr: float | None = None
    """Peak learning rate; default by the fitted law."""
    kappa: float = KAPPA
    delta: float = DELTA
    horizon_law: HorizonCorrection = "measured"
    """"measured": a peak rate that is not given follows the horizon, and with it omega."""
    omega: float | None = None
    """Weight-decay strength of the paper's omega / t; default `OMEGA`, times sqrt(f) by `horizon_law`."""
    weight_decay: float | None = None
    wd_ts: float | None = None
    """Steps."""
    wd_ts_divisor: float = 10.0
    """The default wd_ts is iterations / wd_ts_divisor."""
    decay_bound: float | None = None
    """See `OptimizerPlan`; default `largest_decay`, or none for a `weight_decay` that is given."""
    optimizer_settings: Mapping[str, Any] | None = None
    """Further settings of the optimizer; they determine its own matrix products."""


def plan(arch: str, opt: str, heads: int | None = None, **given: Any) -> Plan:
    """Resolve a run by the scaling rules; explicit values override them.

    Args:
        given: further fields of `PlanRequest`.
    Raises:
        UserError: unknown names, an impossible size or horizon, a warm-up as long as the run.
    Source: arXiv 2602.05298, appendix on the scaling ladder; Hoffmann et al. 2022 for the horizon.
    """
    asked = PlanRequest(arch, canonical_name(opt), heads, **given)
    if (heads is None) == (asked.dims is None):
        raise UserError("give either --heads or explicit dimensions (--d-model, --n-layers, --n-heads), not both")
    shape = asked.dims or dimensions(arch, heads or 0, asked.vocab_size, asked.n_kv_heads)
    for name in ("attention_gate", "tied_head"):
        if getattr(asked, name) is not None:
            shape = replace(shape, **{name: getattr(asked, name)})
    shape = replace(shape, seq_len=asked.context_len or asked.seq_len, **(asked.settings or {}))
    check_resonance(shape)
    shape = shape.resolved()
    budget = budget_of(
        asked, shape, asked.seq_len, asked.global_batch or asked.batch_size * asked.acc_steps * asked.world_size
    )
    f, peak = 1.0, PeakRate(asked.lr or 0.0, "given")
    if asked.lr is None:
        f = 1.0 if asked.horizon_law == "none" else horizon_of(shape, budget, asked.horizon_basis)
        peak = at_horizon(law_rate(shape, asked.opt, asked.kappa, budget.tokens_per_step), asked.opt, f)
    return Plan(dims=shape, budget=budget, optimizer=decay_of(asked, shape, budget, peak, f))


Asked = Any
"""A `PlanRequest`, or other settings with its names: those of `danalab train`."""


def budget_of(asked: Asked, shape: Dimensions, seq_len: int, global_batch: int) -> TrainingBudget:
    """Steps, tokens, warm-up and FLOPs."""
    tokens_per_step = global_batch * seq_len
    if tokens_per_step < 1:
        raise UserError(f"global batch {global_batch} x sequence length {seq_len}: no tokens in a step")
    steps = asked.iterations
    if steps is None:
        steps = horizon(shape, tokens_per_step, asked.tokens_per_param, asked.horizon_basis)
    if steps < 1:
        raise UserError(f"--iterations {steps}: at least 1 step is needed")
    warmup = usual_warmup(steps) if asked.warmup_steps is None else asked.warmup_steps
    if not 0 <= warmup < steps:
        raise UserError(f"--warmup-steps is {warmup}; it must lie in 0..{steps - 1}: the run has {steps} steps")
    per_token, tokens = flops_per_token(shape, seq_len), steps * tokens_per_step
    return TrainingBudget(
        seq_len=seq_len, global_batch=global_batch, steps=steps, warmup=warmup, tokens=tokens,
        flops_per_token=per_token, flops=per_token * tokens,
    )  # fmt: skip


def horizon(shape: Dimensions, tokens_per_step: int, tokens_per_param: float, basis: str = "total") -> int:
    """Number of steps that see `tokens_per_param` tokens for each parameter of the `basis` ("total" or "non-emb")."""
    if basis not in ("total", "non-emb"):
        raise UserError(f"--horizon-basis '{basis}': known are total, non-emb")
    params = shape.total_params if basis == "total" else shape.non_emb_params
    steps = int(tokens_per_param * params / tokens_per_step)
    if steps < 1:
        raise UserError(
            f"{tokens_per_param:g} tokens a parameter are {tokens_per_param * params:.3g} tokens, "
            f"less than one step of {tokens_per_step}; use a smaller batch or give --iterations"
        )
    return steps


def horizon_of(shape: Dimensions, budget: TrainingBudget, basis: str) -> float:
    """f of a run; 1 where it has less than a step more than at f = 1."""
    params = shape.total_params if basis == "total" else shape.non_emb_params
    longer = budget.tokens - budget.tokens_per_step >= CHINCHILLA * params
    return budget.tokens / (CHINCHILLA * params) if longer else 1.0


def law_rate(shape: Dimensions, opt: str, kappa: float, tokens_per_step: int, rate_size: float = 1.0) -> PeakRate:
    """The peak rate of the fitted law for a model of `rate_size` times the parameters, at horizon 1."""
    params = shape.non_emb_params * rate_size
    peak = small_run_rate(shape.arch, opt, params, kappa, tokens_per_step)
    source = peak.source
    if rate_size != 1:
        source += f"; at the {params / 1e6:.3g}M parameters of the base model"
    if shape.n_experts is not None:
        source += "; at the parameters that are active"
    return replace(peak, source=source)


def decay_of(asked: Asked, shape: Dimensions, budget: TrainingBudget, peak: PeakRate, f: float = 1.0) -> OptimizerPlan:
    """The optimizer with its weight decay, whose default strength is that at the horizon `f`."""
    opt = canonical_name(asked.opt)
    facts, omega = facts_of(opt), OMEGA if asked.omega is None else asked.omega
    strength = horizon_factors(opt, f)[1] if asked.omega is None else 1.0
    rate = peak.lr  # an independent decay does not depend on it
    if facts.decay == "coupled":
        rate = decay_lr(shape.arch, opt, rate, shape.non_emb_params, asked.kappa, budget.global_batch)
    bound = asked.decay_bound
    if bound is None:
        bound = largest_decay(opt) if asked.weight_decay is None else 0.0
    decay, wd_ts = _weight_decay(
        opt, strength * omega, budget.steps, rate, asked.weight_decay, asked.wd_ts, asked.wd_ts_divisor
    )
    return OptimizerPlan(
        opt=opt,
        peak=peak,
        kappa=asked.kappa,
        delta=asked.delta,
        omega=omega,
        weight_decay=min(decay, bound) if bound and facts.decay == "coupled" else decay,
        wd_ts=wd_ts,
        decay_bound=bound,
        optimizer_flops=optimizer_flops(opt, shape, asked.optimizer_settings or {}, budget.steps),
    )


def own_model(
    params: int, opt: str, tokens_per_step: int, steps: int, *, arch: str, kappa: float, omega: float
) -> tuple[PeakRate, float, float | None]:
    """Peak learning rate, weight decay and its time scale [steps] for a model that is not ours, by `arch`'s laws.

    `params` are without embeddings and head; so the horizon is not known, and rate and decay are those at f = 1.
    """
    opt, batch = canonical_name(opt), max(1, tokens_per_step // 2048)
    peak = small_run_rate(arch, opt, params, kappa, tokens_per_step)
    rate = decay_lr(arch, opt, peak.lr, params, kappa, batch)
    decay, wd_ts = _weight_decay(opt, omega, steps, rate, None, None, PlanRequest.wd_ts_divisor)
    return peak, min(decay, largest_decay(opt)) if facts_of(opt).decay == "coupled" else decay, wd_ts


def _weight_decay(
    opt: str,
    omega: float,
    steps: int,
    rate: float,
    weight_decay: float | None,
    wd_ts: float | None,
    wd_ts_divisor: float,
) -> tuple[float, float | None]:
    """(weight decay, its time scale in steps) by the optimizer's rule."""
    if wd_ts is not None and wd_ts <= 0:
        raise UserError(f"--wd-ts is {wd_ts}; it must be positive [steps]")
    if facts_of(opt).decay == "coupled":
        decays = facts_of(opt).decay_falls
        if wd_ts is not None and not decays:
            raise UserError(f"--wd-ts: the weight decay of {opt} is constant; use adamw-decaying-wd")
        weight_decay = omega / (rate * steps) if weight_decay is None else weight_decay
        return weight_decay, (wd_ts or float(steps)) if decays else None
    wd_ts = wd_ts if wd_ts is not None else max(1, int(steps / wd_ts_divisor))
    return (omega / wd_ts if weight_decay is None else weight_decay), wd_ts

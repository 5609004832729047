"""The plan of a run: from heads, optimizer and batch to steps, learning rate, weight decay and FLOPs.

tokens per step = global batch x seq_len          steps   = floor(20 x total parameters / tokens per step)
warm-up         = `warmup_steps`                  lr      = a (b + P)^d, see `small_run_rate`, x f^h: `at_horizon`
weight decay    = omega / wd_ts, wd_ts = steps / 10     independent: times the schedule, not the peak lr
                = omega / (lr x steps)                  coupled: AdamW and most others; Manau also has wd_ts = steps
                  at most `largest_decay` x the peak lr, in both cases; omega = 4 sqrt(f) where h is measured
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from danalab.errors import UserError
from danalab.optim.catalogue import OPTIMIZERS
from danalab.optim.run_length import warmup_steps as usual_warmup
from danalab.scaling.dimensions import Dimensions, dimensions, flops_per_token
from danalab.scaling.learning_rate import (
    CHINCHILLA,
    HorizonCorrection,
    PeakRate,
    at_horizon,
    decay_lr,
    horizon_factors,
    largest_decay,
)
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.scaling.resonance import check_resonance
from danalab.scaling.shape import GPT2_VOCAB
from danalab.scaling.small_runs import small_run_rate

OMEGA = 4.0
"""The paper's weight-decay strength."""


_SHAPE = (
    "arch", "n_heads", "n_layers", "d_model", "head_dim", "mlp_dim", "vocab_size", "attention_gate", "n_kv_heads",
    "num_frequencies", "tied_head", "non_emb_params", "total_params", "exact_params", "active_params", "n_experts",
    "top_k", "expert_dim", "n_shared_experts", "sparse_layers", "delta_layers",
)  # fmt: skip
"""Attributes of `Dimensions` that `Plan.as_dict` shows."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run with every number resolved. It has the attributes of its `dims` and `peak`, too: `plan.n_layers`,
    `plan.lr_source`."""

    dims: Dimensions
    """The model; `seq_len` is the length of its context."""
    opt: str
    seq_len: int
    """Tokens of a training sequence."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    tokens_per_step: int
    steps: int
    tokens: int
    """Tokens of the run: steps x tokens_per_step."""
    warmup: int
    """Steps."""
    peak: PeakRate
    kappa: float
    delta: float
    omega: float
    """Strength of weight decay at horizon 1."""
    weight_decay: float
    wd_ts: float | None
    """Time scale of the decaying weight decay [steps]; None: constant decay, coupled to the learning rate."""
    decay_bound: float
    """The largest weight decay, times the peak learning rate; 0: no bound. A coupled `weight_decay` contains it."""
    flops_per_token: int
    flops: int
    """Training FLOPs of the model in the whole run."""
    optimizer_flops: float | None
    """FLOPs of the optimizer's own matrix products in the whole run; None: not known, of an optimizer of your own."""

    def __getattr__(self, name: str) -> Any:
        if name == "dims" or name.startswith("__"):  # of a copy that has no fields yet
            raise AttributeError(name)
        return getattr(self.peak, name[3:]) if name.startswith("lr_") else getattr(self.dims, name)

    @property
    def lr(self) -> float:
        """Peak learning rate."""
        return self.peak.lr

    @property
    def lr_is_extrapolated(self) -> bool:
        """Whether the learning rate's law was fitted at another batch, and no factor adapts it."""
        return self.peak.law_batch not in (None, self.global_batch) and self.peak.batch_factor == 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in one level."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        del own["dims"]
        rate = {f"lr_{name}": value for name, value in vars(own.pop("peak")).items() if name != "lr"}
        return {name: getattr(self.dims, name) for name in _SHAPE} | own | {"lr": self.lr, **rate}


def plan(
    arch: str,
    opt: str,
    heads: int | None = None,
    *,
    dims: Dimensions | None = None,
    seq_len: int = 2048,
    context_len: int | None = None,
    batch_size: int = 32,
    acc_steps: int = 1,
    world_size: int = 1,
    global_batch: int | None = None,
    vocab_size: int = GPT2_VOCAB,
    attention_gate: bool | None = None,
    tied_head: bool | None = None,
    n_kv_heads: int | None = None,
    kappa: float = 0.85,
    delta: float = 8.0,
    omega: float | None = None,
    tokens_per_param: float = CHINCHILLA,
    horizon_basis: str = "total",
    horizon_law: HorizonCorrection = "measured",
    tokens: int | None = None,
    iterations: int | None = None,
    warmup_steps: int | None = None,
    lr: float | PeakRate | None = None,
    rate_size: float = 1.0,
    weight_decay: float | None = None,
    wd_ts: float | None = None,
    wd_ts_divisor: float = 10.0,
    decay_bound: float | None = None,
    settings: Mapping[str, Any] | None = None,
    optimizer_settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve a run by the scaling rules; explicit values override them.

    Args:
        heads: size by the architecture's rule, with `n_kv_heads`; or give `dims`, explicit dimensions.
        attention_gate, tied_head: None = as in `dims` or the architecture.
        context_len: context of the model; default `seq_len`.
        batch_size: sequences of one micro-batch on one rank; x `acc_steps` x `world_size` = global batch.
        global_batch: sequences per step, in place of the product.
        omega: weight-decay strength of the paper's omega / t; default 4, times sqrt(f) by `horizon_law`.
        tokens_per_param, horizon_basis: the horizon, counted on "total" or "non-emb" parameters.
        horizon_law: "measured": a peak rate that is not given follows the horizon, and with it omega.
        tokens: of the run, where smaller batches come first; default `iterations` of them.
        rate_size: the law's rate is that of a model of this many times the parameters.
        iterations, warmup_steps, wd_ts: steps.
        wd_ts_divisor: the default wd_ts is iterations / wd_ts_divisor.
        decay_bound: see `Plan`; default `largest_decay`, or none for a `weight_decay` that is given.
        settings: further fields of `Dimensions`, e.g. `EXPERT_SETTINGS`.
        optimizer_settings: further settings of the optimizer; they determine its own matrix products.
    Raises:
        UserError: unknown names, an impossible size or horizon, a warm-up as long as the run.
    Source: arXiv 2602.05298, appendix on the scaling ladder; Hoffmann et al. 2022 for the horizon.
    """
    opt = OPTIMIZERS.canonical(opt)
    if (heads is None) == (dims is None):
        raise UserError("give either --heads or explicit dimensions (--d-model, --n-layers, --n-heads), not both")
    shape = dims if dims is not None else dimensions(arch, heads or 0, vocab_size, n_kv_heads)
    gate = shape.attention_gate if attention_gate is None else attention_gate
    tied = shape.tied_head if tied_head is None else tied_head
    shape = replace(shape, attention_gate=gate, tied_head=tied, seq_len=context_len or seq_len, **(settings or {}))
    check_resonance(shape)
    shape = shape.resolved()
    global_batch = global_batch or batch_size * acc_steps * world_size
    tokens_per_step = global_batch * seq_len
    if tokens_per_step < 1:
        raise UserError(f"global batch {global_batch} x sequence length {seq_len}: no tokens in a step")

    if iterations is None:
        iterations = horizon(shape, tokens_per_step, tokens_per_param, horizon_basis)
    if iterations < 1:
        raise UserError(f"--iterations {iterations}: at least 1 step is needed")
    f, strength = 1.0, 1.0
    if horizon_law == "measured" and (lr is None or isinstance(lr, PeakRate)):
        f = _horizon_of(shape, tokens or iterations * tokens_per_step, tokens_per_step, horizon_basis)
        strength = horizon_factors(opt, f)[1] if omega is None else 1.0
    omega = OMEGA if omega is None else omega
    warmup = usual_warmup(iterations) if warmup_steps is None else warmup_steps
    if not 0 <= warmup < iterations:
        raise UserError(f"--warmup-steps {warmup} must lie in 0..{iterations - 1}: the run has {iterations} steps")

    if lr is None:
        params = shape.non_emb_params * rate_size
        peak = small_run_rate(shape.arch, opt, params, kappa, tokens_per_step)
        if rate_size != 1:
            peak = replace(peak, source=f"{peak.source}; at the {params / 1e6:.3g}M parameters of the base model")
        if shape.n_experts is not None:
            peak = replace(peak, source=f"{peak.source}; at the parameters that are active")
        peak = at_horizon(peak, opt, f)
    else:
        peak = lr if isinstance(lr, PeakRate) else PeakRate(lr, "given")
    rate = decay_lr(shape.arch, opt, peak.lr, shape.non_emb_params, kappa, global_batch)
    if decay_bound is None:
        decay_bound = largest_decay(opt) if weight_decay is None else 0.0
    weight_decay, wd_ts = _weight_decay(opt, strength * omega, iterations, rate, weight_decay, wd_ts, wd_ts_divisor)
    if decay_bound and OPTIMIZERS.get(opt).decay == "coupled":
        weight_decay = min(weight_decay, decay_bound)
    per_token = flops_per_token(shape, seq_len)
    tokens = iterations * tokens_per_step
    return Plan(
        dims=shape,
        opt=opt,
        seq_len=seq_len,
        global_batch=global_batch,
        tokens_per_step=tokens_per_step,
        steps=iterations,
        tokens=tokens,
        warmup=warmup,
        peak=peak,
        kappa=kappa,
        delta=delta,
        omega=omega,
        weight_decay=weight_decay,
        wd_ts=wd_ts,
        decay_bound=decay_bound,
        flops_per_token=per_token,
        flops=per_token * tokens,
        optimizer_flops=optimizer_flops(opt, shape, optimizer_settings or {}, iterations),
    )


def own_model(
    params: int, opt: str, tokens_per_step: int, steps: int, *, arch: str, kappa: float, omega: float
) -> tuple[PeakRate, float, float | None]:
    """Peak learning rate, weight decay and its time scale [steps] for a model that is not ours, by `arch`'s laws.

    `params` are without embeddings and head; so the horizon is not known, and rate and decay are those at f = 1.
    """
    opt, batch = OPTIMIZERS.canonical(opt), max(1, tokens_per_step // 2048)
    peak = small_run_rate(arch, opt, params, kappa, tokens_per_step)
    rate = decay_lr(arch, opt, peak.lr, params, kappa, batch)
    decay, wd_ts = _weight_decay(opt, omega, steps, rate, None, None, 10.0)
    return peak, min(decay, largest_decay(opt)) if OPTIMIZERS.get(opt).decay == "coupled" else decay, wd_ts


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


def _horizon_of(shape: Dimensions, tokens: int, tokens_per_step: int, basis: str) -> float:
    """f of a run; 1 where it has less than a step more than at f = 1."""
    params = shape.total_params if basis == "total" else shape.non_emb_params
    return tokens / (CHINCHILLA * params) if tokens - tokens_per_step >= CHINCHILLA * params else 1.0


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
        raise UserError(f"--wd-ts {wd_ts}: must be positive [steps]")
    if OPTIMIZERS.get(opt).decay == "none":
        if weight_decay or wd_ts is not None:
            raise UserError(f"--{'weight-decay' if weight_decay else 'wd-ts'}: {opt} has no weight decay; leave it out")
        return 0.0, None
    if OPTIMIZERS.get(opt).decay == "coupled":
        decays = OPTIMIZERS.get(opt).decay_falls
        if wd_ts is not None and not decays:
            raise UserError(f"--wd-ts: the weight decay of {opt} is constant; use adamw-decaying-wd")
        weight_decay = omega / (rate * steps) if weight_decay is None else weight_decay
        return weight_decay, (wd_ts or float(steps)) if decays else None
    wd_ts = wd_ts if wd_ts is not None else max(1, int(steps / wd_ts_divisor))
    return (omega / wd_ts if weight_decay is None else weight_decay), wd_ts

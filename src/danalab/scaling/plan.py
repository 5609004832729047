"""The plan of a run: from heads, optimizer and batch to steps, learning rate, weight decay and FLOPs.

tokens per step = global batch x seq_len          steps   = floor(20 x total parameters / tokens per step)
warmup         = `warmup_steps`                  lr      = a (b + P)^d, see `danalab.scaling.learning_rate`
weight decay    = omega / wd_ts, wd_ts = steps / 10     independent: times the schedule, not the peak lr
                = omega / (lr x steps)                  coupled: AdamW and most others; Manau also has wd_ts = steps
                  at most `largest_decay` x the peak lr, in both cases
"""

from dataclasses import dataclass, fields
from typing import Any

from danalab.errors import UserError
from danalab.models.config import GPT2_VOCAB, ModelConfig, flops_per_token
from danalab.optimizer_facts import DELTA, KAPPA, OMEGA, canonical_name, facts_of
from danalab.optimizer_facts import warmup_steps as usual_warmup
from danalab.scaling.learning_rate import CHINCHILLA, decay_lr, largest_decay, law_rate
from danalab.scaling.optimizer_flops import optimizer_flops


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A planned run with every number filled in."""

    model: ModelConfig
    opt: str
    seq_len: int
    """Tokens of a training sequence."""
    global_batch: int
    """Sequences per step, over all ranks and micro-batches."""
    iterations: int
    """Steps of the run."""
    warmup_steps: int
    lr: float
    """Peak learning rate."""
    lr_source: str
    kappa: float
    """The Dana family's, which the laws of the learning rate are for."""
    delta: float
    omega: float
    """Strength of weight decay, as in omega / t."""
    weight_decay: float
    wd_ts: float | None
    """Time scale of the decaying weight decay [steps]; None: constant decay, coupled to the learning rate."""
    decay_bound: float
    """The largest weight decay, times the peak learning rate; 0: no bound. A coupled `weight_decay` contains it."""

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.iterations

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step, over all ranks and micro-batches."""
        return self.global_batch * self.seq_len

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.iterations * self.tokens_per_step

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs of the model on one token."""
        return flops_per_token(self.model, self.seq_len)

    @property
    def flops(self) -> int:
        """Training FLOPs of the model in the whole run."""
        return self.flops_per_token * self.tokens

    @property
    def optimizer_flops(self) -> float:
        """FLOPs of the optimizer's own matrix products in the whole run."""
        return optimizer_flops(self.opt, self.model, {}, self.iterations)

    @property
    def total_flops(self) -> float:
        """The FLOPs of the model and of the optimizer's own matrix products."""
        return self.flops + self.optimizer_flops

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in one level."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "model"}
        own |= {"steps": own.pop("iterations"), "warmup": own.pop("warmup_steps")}
        names = ("tokens_per_step", "tokens", "flops_per_token", "flops", "optimizer_flops")
        return self.model.counts() | own | {name: getattr(self, name) for name in names}


def plan(
    arch: str,
    opt: str,
    heads: int | None = None,
    *,
    model: ModelConfig | None = None,
    vocab_size: int = GPT2_VOCAB,
    seq_len: int = 2048,
    batch_size: int = 32,
    acc_steps: int = 1,
    world_size: int = 1,
    global_batch: int | None = None,
    iterations: int | None = None,
    tokens_per_param: float = CHINCHILLA,
    horizon_basis: str = "total",
    warmup_steps: int | None = None,
    lr: float | None = None,
    lr_source: str = "given",
    kappa: float = KAPPA,
    delta: float = DELTA,
    omega: float | None = None,
    weight_decay: float | None = None,
    wd_ts: float | None = None,
    wd_ts_divisor: float = 10.0,
    decay_bound: float | None = None,
    **shape: Any,
) -> Plan:
    """Fill in a run by the scaling rules; explicit values win.

    Args:
        heads: size by the architecture's rule, with `shape`, further fields of `ModelConfig`; or give `model`.
        global_batch: sequences per step; default batch_size x acc_steps x world_size.
        iterations: steps; default by `tokens_per_param`, counted over "total" or "non-emb" parameters.
        lr: peak learning rate; default by the fitted law.
        weight_decay, wd_ts, decay_bound: see `Plan`; the default wd_ts is iterations / wd_ts_divisor, the default bound
            `largest_decay`, or none for a weight_decay that is given.
    Raises:
        UserError: unknown names, an impossible size or horizon, a warmup as long as the run.
    Source: arXiv 2602.05298, appendix on the scaling ladder; Hoffmann et al. 2022 for the horizon.
    """
    if (heads is None) == (model is None):
        raise UserError(
            "give either --heads or explicit dimensions (--d-model, --n-layers, --n-heads), not both"
        )
    opt = canonical_name(opt)
    if model is None:
        model = ModelConfig.from_heads(arch, heads or 0, vocab_size, seq_len, **shape)
    batch = global_batch or batch_size * acc_steps * world_size
    tokens_per_step = batch * seq_len
    if tokens_per_step < 1:
        raise UserError(f"global batch {batch} x sequence length {seq_len}: no tokens in a step")
    steps = iterations
    if steps is None:
        steps = horizon(model, tokens_per_step, tokens_per_param, horizon_basis)
    warmup = usual_warmup(steps) if warmup_steps is None else warmup_steps
    if not 0 <= warmup < steps:
        raise UserError(
            f"--warmup-steps is {warmup}; it must lie in 0..{steps - 1}: the run has {steps} steps"
        )
    if lr is None:
        lr, lr_source = law_rate(model.arch, opt, model.non_emb_params, kappa, tokens_per_step)
    omega = OMEGA if omega is None else omega
    bound = decay_bound
    if bound is None:
        bound = largest_decay(opt) if weight_decay is None else 0.0
    rate = decay_lr(model.arch, opt, lr, model.non_emb_params, kappa, batch)
    decay, scale = decay_of(opt, omega, steps, rate, weight_decay, wd_ts, wd_ts_divisor)
    if bound and facts_of(opt).decay == "coupled":
        decay = min(decay, bound)
    return Plan(
        model=model,
        opt=opt,
        seq_len=seq_len,
        global_batch=batch,
        iterations=steps,
        warmup_steps=warmup,
        lr=lr,
        lr_source=lr_source,
        kappa=kappa,
        delta=delta,
        omega=omega,
        weight_decay=decay,
        wd_ts=scale,
        decay_bound=bound,
    )


def dimensions(
    arch: str, heads: int, vocab_size: int = GPT2_VOCAB, n_kv_heads: int | None = None
) -> ModelConfig:
    """The model of `arch` with this number of attention heads; see `ModelConfig.from_heads`."""
    return ModelConfig.from_heads(arch, heads, vocab_size, n_kv_heads=n_kv_heads)


def horizon(model: ModelConfig, tokens_per_step: int, tokens_per_param: float, basis: str = "total") -> int:
    """Number of steps that see `tokens_per_param` tokens for each parameter of the `basis` ("total" or "non-emb")."""
    if basis not in ("total", "non-emb"):
        raise UserError(f"--horizon-basis '{basis}': known are total, non-emb")
    params = model.total_params if basis == "total" else model.non_emb_params
    steps = int(tokens_per_param * params / tokens_per_step)
    if steps < 1:
        raise UserError(
            f"{tokens_per_param:g} tokens a parameter are {tokens_per_param * params:.3g} tokens, "
            f"less than one step of {tokens_per_step}; use a smaller batch or give --iterations"
        )
    return steps


def decay_of(
    opt: str,
    omega: float,
    steps: int,
    rate: float,
    weight_decay: float | None = None,
    wd_ts: float | None = None,
    wd_ts_divisor: float = 10.0,
) -> tuple[float, float | None]:
    """(weight decay, its time scale in steps) by the optimizer's rule; `rate`: see `decay_lr`."""
    if wd_ts is not None and wd_ts <= 0:
        raise UserError(f"--wd-ts is {wd_ts}; it must be positive [steps]")
    facts = facts_of(opt)
    if facts.decay == "independent":
        wd_ts = wd_ts if wd_ts is not None else max(1, int(steps / wd_ts_divisor))
        return (omega / wd_ts if weight_decay is None else weight_decay), wd_ts
    if wd_ts is not None and not facts.decay_falls:
        raise UserError(f"--wd-ts: the weight decay of {opt} is constant; use adamw-decaying-wd")
    weight_decay = omega / (rate * steps) if weight_decay is None else weight_decay
    return weight_decay, (wd_ts or float(steps)) if facts.decay_falls else None


def state_bytes(opt: str, moment_bytes: float = 4.0) -> float:
    """Bytes of an optimizer's state for each parameter."""
    return moment_bytes * facts_of(opt).state_words


def memory_gib(
    model: ModelConfig,
    opt: str,
    tokens: int,
    activation_bytes: int = 2,
    *,
    moment_bytes: float = 4.0,
    averaged: bool = False,
    weight_shards: int = 1,
    state_shards: int = 1,
    checkpointing: list[str] | None = None,
    recompute: bool = False,
) -> float:
    """Memory to train on one device [GiB]: float32 weights and gradients, optimizer state, activations.

    Activations of a block for backward: about 8 tensors of width d_model and 3 of width mlp_dim per token, with flash
    attention; the chunked loss adds one hidden state and its gradient.

    Args:
        tokens: of a micro-batch on the device.
        activation_bytes: of one number of an activation; 2 in bfloat16, 4 in float32.
        moment_bytes: of each number of the optimizer's state.
        averaged: a running average of the weights is kept beside them.
        weight_shards, state_shards: ranks that share the weights, and the state.
        checkpointing: none, full or selective for each layer; a block that is recomputed has its activations once.
        recompute: leaves the activations of the blocks out, which checkpointing recomputes: a lower bound.
    """
    words = (12 if averaged else 8) / weight_shards + state_bytes(opt, moment_bytes) / state_shards
    width, hidden, sparse = model.n_heads * model.head_dim, model.mlp_dim, model.sparsity
    if sparse is not None:
        hidden = sparse.top_k * sparse.expert_dim + sparse.shared_dim
        width += sparse.top_k * model.d_model  # copies of each token, to and from its experts
    block = activation_bytes * (4 * model.d_model + 4 * width + 3 * hidden)
    # "selective" keeps products and attention, and recomputes two norms and the activation of the mlp.
    sizes = {"none": block, "full": activation_bytes * model.d_model}
    sizes["selective"] = block - activation_bytes * (2 * model.d_model + hidden)
    modes = checkpointing or ["none"] * model.n_layers
    kept = sum(sizes[mode] for mode in modes) + (block if set(modes) != {"none"} else 0)
    activations = tokens * ((0 if recompute else kept) + 8 * model.d_model)
    return (words * model.exact_params + activations) / 2**30

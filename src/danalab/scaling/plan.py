"""The plan of a run: from heads, optimizer and batch to steps, learning rate, weight decay and FLOPs."""

from dataclasses import dataclass, fields
from typing import Any

from danalab.models.config import GPT2_VOCAB, ModelConfig, flops_per_token
from danalab.scaling.optimizer_flops import optimizer_flops
from danalab.tables import load


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


def plan(arch: str, opt: str, heads: int | None = None, **settings: Any) -> Plan:
    """Fill in a run by the scaling rules, as `danalab train` would; explicit values win.

    Args:
        heads: size by the architecture's rule; or give `model`, a `ModelConfig`.
        settings: vocab_size, world_size, and fields of `danalab.train.TrainConfig`, such as seq_len, global_batch,
            iterations, tokens_per_param, lr.
    Raises:
        UserError: unknown names, an impossible size or horizon, a warmup as long as the run.
    """
    return load("danalab.train.config.resolve:plan")(arch, opt, heads, **settings)


def dimensions(
    arch: str, heads: int, vocab_size: int = GPT2_VOCAB, n_kv_heads: int | None = None
) -> ModelConfig:
    """The model of `arch` with this number of attention heads; see `ModelConfig.from_heads`."""
    return ModelConfig.from_heads(arch, heads, vocab_size, n_kv_heads=n_kv_heads)

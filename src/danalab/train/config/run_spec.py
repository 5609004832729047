"""The complete description of a run, from which every part of the trainer is built. Needs no torch.

flags -> TrainConfig -> resolve -> RunSpec -> model, optimizer, batches, checkpoints
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from danalab.data.order.ramps import Ramp
from danalab.errors import UserError
from danalab.models.config import ModelConfig, checkpointing_rule
from danalab.optim.schedules import Schedule, get_schedule
from danalab.scaling import Plan, flops_per_token
from danalab.scaling.hardware import memory_gib
from danalab.scaling.small_runs import slow_momentum
from danalab.train.config.fields import flag
from danalab.train.config.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A frozen, complete description of a run. What is built from it reads its fields, properties and sections."""

    config: TrainConfig
    """The settings with every automatic value filled in, for records and other configurations."""
    model: ModelConfig
    plan: Plan
    run_dir: Path
    device_type: str
    """cpu or cuda."""
    dtype: str
    """Number format of matrix products: float32, bfloat16 or float16."""
    compile: bool
    """Whether each block is compiled by torch.compile."""
    backend: str
    """How ranks share the work: single, ddp, zero, fsdp or diloco."""
    automatic: frozenset[str] = frozenset()
    """Names of the settings that were left automatic."""
    notes: tuple[str, ...] = ()
    """Messages about automatic choices, for the log."""

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch on one rank."""
        assert self.config.batch_size is not None
        return self.config.batch_size

    @cached_property
    def batches(self) -> "BatchSchedule":
        """Global batch and sequence length of each step."""
        config = self.config
        return BatchSchedule.of(self.plan.global_batch, self.plan.seq_len, config.batch_ramp, config.seq_len_ramp)

    @cached_property
    def optimizer_settings(self) -> dict[str, Any]:
        """The settings of the optimizer for `build_optimizer`, or a UserError for one it lacks; imports torch."""
        return optimizer_settings(self.config, self.plan.steps)

    @property
    def state_dtype(self) -> str:
        """Number format of the optimizer's moments."""
        return self.config.optimizer_settings.get("state_dtype", "float32")

    def flops(self, steps: int) -> int:
        """Training FLOPs of the first `steps` steps."""
        return self.batches.flops(steps, lambda length: flops_per_token(self.model, length))

    @property
    def iterations(self) -> int:
        """Steps of the whole run, extension included."""
        return self.config.extend_to or self.plan.steps

    def is_logged(self, step: int) -> bool:
        """Whether the step gets a row."""
        return step % self.config.log_interval == 0 or step == 1 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether its row has an evaluation; the last one always has."""
        interval = self.config.eval_interval
        return step == self.iterations or bool(interval and step % interval == 0)

    def is_saved(self, step: int) -> bool:
        """Whether it is checkpointed, besides at the end and when stopped."""
        interval = self.config.ckpt_interval
        return bool(interval and step % interval == 0) or step in self.config.kept_steps()

    def schedule(self) -> Schedule:
        """0-based step -> factor of the peak rate. An extension lengthens cos_inf's tail; others are computed again."""
        config = self.config
        settings = config.scheduler_settings()
        if config.scheduler.replace("-", "_") == "cos_inf" and self.iterations > self.plan.steps:
            settings["cos_inf_steps"] = settings.get("cos_inf_steps", 0) + self.iterations - self.plan.steps
        return get_schedule(config.scheduler, self.iterations, self.plan.warmup, **settings)

    def jump(self) -> str | None:
        """A warning where an extension raises the learning rate at the step where the run would have ended."""
        seam = self.plan.steps
        if self.iterations == seam:
            return None
        planned = replace(self, config=replace(self.config, extend_to=None))
        before, after = planned.schedule()(seam - 1), self.schedule()(seam)
        if after <= 1.1 * before:
            return None
        return (
            f"--extend-to {self.iterations}: {self.config.scheduler} is computed again over all steps, so the learning "
            f"rate goes from {before * self.plan.lr:.3g} to {after * self.plan.lr:.3g} at step {seam}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The part of config.json that describes the run; its `config` has the number format that is used."""
        return {
            "config": {**self.config.as_dict(), "dtype": self.dtype},
            "model": self.model.as_dict(),
            "plan": self.plan.as_dict(),
            "optimizer": {"name": self.plan.opt, "lr": self.plan.lr, "settings": self.optimizer_settings},
            "execution": {"device_type": self.device_type, "compile": self.compile, "backend": self.backend},
            "steps": self.iterations,
            "params": self.plan.exact_params,
            "tokens_per_step": self.plan.tokens_per_step,
            "lr_source": self.plan.lr_source,
        }


def recorded_dtype(record: Mapping[str, Any]) -> str:
    """The number format of a run from its config.json; version 0.1 did not record an automatic one."""
    return record["config"].get("dtype") or ("float32" if record.get("device", "cpu") == "cpu" else "bfloat16")


def run_memory_gib(
    spec: RunSpec, micro_batch: int, ranks: int = 1, activation_bytes: int = 2, *, recompute: bool = False
) -> float:
    """The estimate of `memory_gib` for one of a run's `ranks`, with a micro-batch of this many sequences [GiB]."""
    rule = checkpointing_rule(spec.config.activation_checkpointing)
    return memory_gib(
        spec.plan,
        micro_batch,
        activation_bytes,
        state_dtype=spec.state_dtype,
        averaged=spec.config.weight_average() is not None,
        weight_shards=ranks if spec.backend == "fsdp" else 1,
        state_shards=ranks if spec.backend in ("fsdp", "zero") else 1,
        checkpointing=[rule(layer) for layer in range(spec.plan.n_layers)],
        recompute=recompute,
    )


RESERVED = {"horizon": "the run's length is --iterations"}
"""Settings of optimizers that a run sets itself."""


def checked_settings(config: TrainConfig) -> dict[str, Any]:
    """`config.optimizer_settings` with values of the right types."""
    if not config.optimizer_settings:
        return {}
    from danalab.optim import optimizer_spec
    from danalab.optim.distributed.dtensor.adapter import check_numbers_of
    from danalab.optim.registry import read_settings

    spec = optimizer_spec(config.opt)
    own = {field.name for field in fields(TrainConfig)}
    for name in config.optimizer_settings:
        if name in RESERVED and name in spec.settings:
            raise UserError(f"{flag(name)}: {RESERVED[name]}")
        if name in own and name in spec.settings:
            raise UserError(f"optimizer_settings: {name} is a setting of the run; give it as {flag(name)}")
    settings = read_settings(spec, config.optimizer_settings)
    check_numbers_of(f"--opt {spec.name}", spec.settings, settings)
    return settings


def optimizer_settings(config: TrainConfig, steps: int) -> dict[str, Any]:
    """The hyper-parameters for `build_optimizer`."""
    from danalab.optim import optimizer_spec

    known = optimizer_spec(config.opt).settings
    settings: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("kappa", "delta", "weight_decay", "wd_ts", "decay_bound")
        if name in known
    }
    for name in ("clipsnr", "gamma3"):
        value = getattr(config, name)
        if value is not None and name not in known:
            raise UserError(f"--{name} {value}: {config.opt} has no {name}; leave it out")
        if value is not None:
            settings[name] = value
    further = checked_settings(config)
    if "beta3_warmup" in known:
        settings |= slow_momentum(steps, config.delta, config.kappa)
    settings |= _betas(config, settings.get("betas"), known, further)
    return settings | further


def _betas(config: TrainConfig, ruled: Any, known: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """--beta1 and --beta2, wherever the optimizer has them."""
    given = {name: value for name in ("beta1", "beta2") if (value := getattr(config, name)) is not None}
    if not given:
        return {}
    flags = ", ".join(map(flag, given))
    if "betas" in further:
        raise UserError(f"{flags}: --betas is given, too; leave one of them out")
    if "betas" in known:
        betas = list(ruled or known["betas"].default)
        for place, name in enumerate(("beta1", "beta2")):
            betas[place] = given.get(name, betas[place])
        return {"betas": tuple(betas)}
    missing = [name for name in given if name not in known]
    if missing:
        raise UserError(f"{flags}: {config.opt} has no constant betas; leave them out")
    return given


@dataclass(frozen=True)
class BatchSchedule:
    """Sequences of each step, and the lengths that they are cut into.

    sequences(k) = sum of the first k global batches, tokens(k) = sequences(k) x seq_len. A ramp of lengths cuts
    sequences into pieces (`data.order.batches`), so it changes neither; it makes attention cheaper, which FLOPs show.
    """

    batch: Ramp
    length: Ramp

    @classmethod
    def of(cls, global_batch: int, seq_len: int, batch_ramp: str | None, seq_len_ramp: str | None) -> "BatchSchedule":
        """From the flags."""
        schedule = cls(
            Ramp.parse(batch_ramp, global_batch, "--batch-ramp"), Ramp.parse(seq_len_ramp, seq_len, "--seq-len-ramp")
        )
        for length in schedule.length.values:
            if seq_len % length:
                raise UserError(f"--seq-len-ramp {seq_len_ramp}: {length} does not divide --seq-len {seq_len}")
        return schedule

    @property
    def is_constant(self) -> bool:
        """Whether all steps have the same batch and length."""
        return not (self.batch.stages or self.length.stages)

    def sequences(self, steps: int) -> int:
        """Sequences of full length that the first `steps` steps consume."""
        return self.batch.total(steps)

    def tokens(self, steps: int) -> int:
        """Tokens that the first `steps` steps consume."""
        return self.sequences(steps) * self.length.final

    def flops(self, steps: int, per_token: Callable[[int], int]) -> int:
        """Training FLOPs of the first `steps` steps; `per_token(length)` is the cost of a token."""
        total = begin = 0
        for end in [*(until for _, until in self.length.stages), steps]:
            end = min(end, steps)
            if end > begin:
                total += (self.tokens(end) - self.tokens(begin)) * per_token(self.length.at(begin))
                begin = end
        return total

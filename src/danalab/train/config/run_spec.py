"""The complete record of a run, from which every part of the trainer is built: five parts, each fact in one. No torch.

flags -> TrainConfig -> resolve -> RunSpec(given, model, budget, optimizer, execution) -> model, optimizer, batches
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.models.config import ModelConfig, checkpointing_rule
from danalab.optim.schedules import Schedule, get_schedule
from danalab.scaling import Dimensions, Plan, flops_per_token
from danalab.scaling.hardware import memory_gib
from danalab.scaling.learning_rate import slow_momentum
from danalab.scaling.optimizers import facts_of
from danalab.scaling.plan import OptimizerPlan, TrainingBudget
from danalab.scaling.shape import ROUTER_SETTINGS
from danalab.train.config.experiment import RESERVED, SHARED_SETTINGS, ModelSettings, shared_settings
from danalab.train.config.fields import flag, plain
from danalab.train.config.train_config import TrainConfig

_SIZES = ("arch", "d_model", "n_layers", "n_heads", "head_dim", "mlp_dim", "num_frequencies", "n_experts", "top_k",
          "expert_dim", "n_shared_experts", "vocab_size")  # fmt: skip
"""Settings that the model decides."""


@dataclass(frozen=True, kw_only=True)
class RunBudget(TrainingBudget):
    """Batch, length and evaluations of a run."""

    batch_size: int
    """Sequences of a micro-batch on one rank."""
    acc_steps: int
    """Micro-batches in a step on one rank."""
    eval_interval: int
    """Steps between evaluations; 0: only at the end."""
    eval_batches: int
    final_eval_batches: int


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The folder, device, number format and ranks of a run."""

    run_dir: Path
    name: str
    device_type: str
    """cpu or cuda."""
    dtype: str
    """Number format of matrix products: float32, bfloat16 or float16."""
    compile: bool
    """Whether each block is compiled by torch.compile."""
    backend: str
    """How ranks share the work, one of `danalab.train.config.backends`."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A frozen, complete description of a run. What is built from it reads its parts and properties."""

    given: TrainConfig
    """The settings as they were given; None is automatic."""
    model: ModelConfig
    budget: RunBudget
    optimizer: OptimizerPlan
    execution: Execution
    notes: tuple[str, ...] = ()
    """Messages about automatic choices, for the log."""

    @cached_property
    def plan(self) -> Plan:
        """The run as the scaling rules see it."""
        return Plan(dims=dimensions_of(self.model), budget=self.budget, optimizer=self.optimizer)

    @cached_property
    def config(self) -> TrainConfig:
        """The settings with every automatic value filled in, for other configurations."""
        given, budget, chosen, own = self.given, self.budget, self.optimizer, self.execution
        return replace(
            given,
            **{name: getattr(self.plan.dims, name) for name in _SIZES},
            **{name: getattr(budget, name) for name in ("seq_len", "global_batch", "batch_size", "acc_steps")},
            **{name: getattr(budget, name) for name in ("eval_interval", "eval_batches", "final_eval_batches")},
            **{name: getattr(chosen, name) for name in ("opt", "lr", "omega", "weight_decay", "wd_ts", "decay_bound")},
            data=given.source,
            iterations=budget.steps,
            warmup_steps=budget.warmup,
            init=given.init or self.model.architecture.init,
            run_dir=own.run_dir,
            name=own.name,
        )

    @property
    def automatic(self) -> frozenset[str]:
        """Names of the settings that were left automatic."""
        return frozenset(name for name, value in vars(self.given).items() if value is None)

    @cached_property
    def optimizer_settings(self) -> dict[str, Any]:
        """The settings of the optimizer for `build_optimizer`, or a UserError for one it lacks; imports torch."""
        return optimizer_settings(self.given, self.optimizer, self.budget.steps)

    def sequences(self, steps: int) -> int:
        """Sequences of the first `steps` steps."""
        return steps * self.budget.global_batch

    def tokens(self, steps: int) -> int:
        """Tokens of the first `steps` steps."""
        return self.sequences(steps) * self.budget.seq_len

    def flops(self, steps: int) -> int:
        """Training FLOPs of the first `steps` steps."""
        return self.tokens(steps) * flops_per_token(self.model, self.budget.seq_len)

    @property
    def iterations(self) -> int:
        """Steps of the whole run, extension included."""
        return self.given.extend_to or self.budget.steps

    def is_logged(self, step: int) -> bool:
        """Whether the step gets a row."""
        return step % self.given.log_interval == 0 or step == 1 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether its row has an evaluation; the last one always has."""
        interval = self.budget.eval_interval
        return step == self.iterations or bool(interval and step % interval == 0)

    def is_saved(self, step: int) -> bool:
        """Whether it is checkpointed, besides at the end and when stopped."""
        interval = self.given.ckpt_interval
        return bool(interval and step % interval == 0) or step in self.given.kept_steps()

    def schedule(self) -> Schedule:
        """0-based step -> factor of the peak rate. An extension lengthens cos_inf's tail; others are computed again."""
        name, settings, planned = self.given.scheduler, self.given.scheduler_settings(), self.budget
        if name.replace("-", "_") == "cos_inf" and self.iterations > planned.steps:
            settings["cos_inf_steps"] = settings.get("cos_inf_steps", 0) + self.iterations - planned.steps
        return get_schedule(name, self.iterations, planned.warmup, **settings)

    def jump(self) -> str | None:
        """A warning where an extension raises the learning rate at the step where the run would have ended."""
        seam = self.budget.steps
        if self.iterations == seam:
            return None
        planned = replace(self, given=replace(self.given, extend_to=None))
        before, after = planned.schedule()(seam - 1), self.schedule()(seam)
        if after <= 1.1 * before:
            return None
        peak = self.optimizer.lr
        return (
            f"--extend-to {self.iterations}: {self.given.scheduler} is computed again over all steps, so the learning "
            f"rate goes from {before * peak:.3g} to {after * peak:.3g} at step {seam}"
        )

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings by the names of their flags, those of every optimizer beside the others."""
        settings, chosen = self.config.as_dict() | settings_of(self.model), self.optimizer
        own = {name: value for name, value in settings["optimizer_settings"].items() if name not in SHARED_SETTINGS}
        shared = shared_settings(self.given.optimizer_settings) | {"omega": chosen.omega}
        return {**settings, **shared, "optimizer_settings": own}

    def as_dict(self) -> dict[str, Any]:
        """The part of config.json that describes the run, each fact once; `danalab.train.run.schemas` reads it."""
        budget, chosen, own = dict(vars(self.budget)), dict(vars(self.optimizer)), dict(vars(self.execution))
        peak = {f"lr_{name}": value for name, value in vars(chosen.pop("peak")).items() if name != "lr"}
        shared = {name: self.settings[name] for name in SHARED_SETTINGS}
        settings = {"optimizer_settings": self.settings["optimizer_settings"]}
        for name, key in RECORDED_AS.items():
            budget[key] = budget.pop(name)
        parts: dict[str, dict[str, Any]] = {
            "model": self.model.as_dict(),
            "budget": budget,
            "optimizer": {**chosen, **shared, "lr": self.optimizer.lr, **peak, **settings},
            "execution": {**own, "run_dir": str(own["run_dir"])},
        }
        del parts["execution"]["backend"]  # `parallel` has it
        elsewhere = {name for part in parts.values() for name in part}
        given = {name: value for name, value in self.settings.items() if name not in elsewhere}
        return {"given": given, **parts}


RECORDED_AS = {"seq_len": "sequence_length", "steps": "iterations", "warmup": "warmup_steps", "tokens": "total_tokens"}
"""Parts of a budget whose names in config.json differ: the model has a `seq_len`, the data have `tokens`."""


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """The settings of a run that its model decides; those of a router are None where they are the defaults."""
    shape, usual = dimensions_of(model), {field.name: field.default for field in fields(ModelConfig)}
    own = {field.name for field in fields(ModelSettings)} & usual.keys()
    settings = {name: plain(getattr(model, name)) for name in own} | {name: getattr(shape, name) for name in _SIZES}
    routed = {name: getattr(model, name) for name in ROUTER_SETTINGS}
    return settings | {name: None if value == usual[name] else value for name, value in routed.items()}


def dimensions_of(model: ModelConfig) -> Dimensions:
    """The shape of a model with every default filled in."""
    return Dimensions(**{field.name: getattr(model, field.name) for field in fields(Dimensions)}).resolved()


def recorded_dtype(record: Mapping[str, Any]) -> str:
    """The number format of a run from its config.json."""
    return record["config"]["dtype"]


def run_memory_gib(
    spec: RunSpec, micro_batch: int, ranks: int = 1, activation_bytes: int = 2, *, recompute: bool = False
) -> float:
    """The estimate of `memory_gib` for one of a run's `ranks`, with a micro-batch of this many sequences [GiB]."""
    rule = checkpointing_rule(spec.given.activation_checkpointing)
    return memory_gib(
        spec.plan,
        micro_batch,
        activation_bytes,
        moment_bytes=2.0 if spec.given.optimizer_settings.get("stochastic_rounding") == "moments" else 4.0,
        averaged=spec.given.ema is not None,
        weight_shards=ranks if spec.execution.backend == "fsdp" else 1,
        state_shards=ranks if spec.execution.backend in ("fsdp", "zero") else 1,
        checkpointing=[rule(layer) for layer in range(spec.plan.n_layers)],
        recompute=recompute,
    )


def checked_settings(config: TrainConfig) -> dict[str, Any]:
    """`config.optimizer_settings` with values of the right types; those that every optimizer may have stay as they are.

    UserError: a setting that the optimizer does not have, or that is the run's.
    """
    shared = {name: value for name, value in config.optimizer_settings.items() if name in SHARED_SETTINGS}
    further = {name: value for name, value in config.optimizer_settings.items() if name not in shared}
    if further:
        from danalab.optim.build import read_settings, settings_of

        known = settings_of(config.opt)
        for name in further:
            if name in RESERVED and name in known:
                raise UserError(f"{flag(name)}: {RESERVED[name]}")
            if name in vars(config) and name in known:
                raise UserError(f"optimizer_settings: {name} is a setting of the run; give it as {flag(name)}")
        further = read_settings(config.opt, further)
    return further | shared


def optimizer_settings(config: TrainConfig, planned: OptimizerPlan, steps: int) -> dict[str, Any]:
    """The hyper-parameters for `build_optimizer`: an optimizer's defaults, what the plan decides, what was given."""
    from danalab.optim import settings_of

    known, given = settings_of(config.opt), checked_settings(config)
    settings = {name: known[name].default for name in ("kappa", "delta") if name in known}
    settings |= {name: getattr(planned, name) for name in ("weight_decay", "wd_ts") if name in known}
    if planned.decay_bound and facts_of(config.opt).decay == "independent" and settings.get("wd_ts"):
        # By omega the decay is bounded.
        settings["omega"] = settings.pop("weight_decay") * settings["wd_ts"]
    if "beta3_warmup" in known:
        settings |= slow_momentum(steps, planned.delta, planned.kappa)
    betas = {name: given.pop(name) for name in ("beta1", "beta2") if name in given}
    for name in ("clipsnr", "gamma3"):
        if name in given and name not in known:
            raise UserError(f"--{name} {given[name]}: {config.opt} has no {name}; leave it out")
    flags = ", ".join(map(flag, betas))
    if betas and "betas" in given:
        raise UserError(f"{flags}: --betas is given, too; leave one of them out")
    if betas and "betas" in known:
        both = list(settings.get("betas", known["betas"].default))
        both[:2] = (betas.get(name, usual) for name, usual in zip(("beta1", "beta2"), both, strict=False))
        betas = {"betas": tuple(both)}
    elif not betas.keys() <= known.keys():
        raise UserError(f"{flags}: {config.opt} has no constant betas; leave them out")
    # `planned` has omega as a weight decay.
    return settings | betas | {name: value for name, value in given.items() if name in known and name != "omega"}

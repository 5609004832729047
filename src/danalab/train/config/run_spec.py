"""The complete description of a run, from which every part of the trainer is built. Needs no torch.

flags -> TrainConfig -> resolve -> RunSpec -> model, optimizer, batches, checkpoints
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from danalab.models.config import ModelConfig
from danalab.optim.schedules import Schedule, get_schedule
from danalab.scaling import Plan, flops_per_token
from danalab.train.config.batch_schedule import BatchSchedule
from danalab.train.config.optimizer_settings import optimizer_settings
from danalab.train.config.sections.checkpoint import CheckpointSettings
from danalab.train.config.sections.data import DataSettings
from danalab.train.config.sections.evaluation import EvaluationSettings, TrackingSettings
from danalab.train.config.sections.execution import ExecutionSettings
from danalab.train.config.sections.job import JobSettings
from danalab.train.config.sections.model import StartSettings
from danalab.train.config.sections.optimizer import LossSettings
from danalab.train.config.sections.parallel import ParallelSettings
from danalab.train.config.sections.schedule import ScheduleSettings
from danalab.train.config.train_config import TrainConfig

S = TypeVar("S")


def _section(kind: type[S]) -> S:
    """The settings of one section, every automatic value filled in."""
    return property(lambda spec: spec.config)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class OptimizerChoice:
    """The arguments of `build_optimizer`."""

    name: str
    lr: float
    """Peak learning rate."""
    settings: Mapping[str, Any]
    phase_lr_factor: float = 1.0
    """Factor on the learning rate of the oscillators' phases."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A frozen, complete description of a run. What is built from it reads its fields, properties and sections."""

    config: TrainConfig
    """The settings with every automatic value filled in, for records and other configurations."""
    model: ModelConfig
    plan: Plan
    run_dir: Path
    lr_source: str
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

    start = _section(StartSettings)
    data = _section(DataSettings)
    loss = _section(LossSettings)
    lr_schedule = _section(ScheduleSettings)
    execution = _section(ExecutionSettings)
    parallel = _section(ParallelSettings)
    checkpoints = _section(CheckpointSettings)
    evaluation = _section(EvaluationSettings)
    tracking = _section(TrackingSettings)
    job = _section(JobSettings)

    def section(self, kind: type[S]) -> S:
        """A section that only the configuration of one stage has."""
        assert isinstance(self.config, kind)
        return self.config

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch on one rank."""
        assert self.config.batch_size is not None
        return self.config.batch_size

    @property
    def global_batch(self) -> int:
        """Sequences a step."""
        return self.plan.global_batch

    @property
    def tokens_per_step(self) -> int:
        """Global batch x sequence length."""
        return self.plan.tokens_per_step

    @property
    def seq_len(self) -> int:
        """Context length [tokens]."""
        return self.plan.seq_len

    @cached_property
    def batches(self) -> BatchSchedule:
        """Global batch and sequence length of each step."""
        config = self.config
        return BatchSchedule.of(self.global_batch, self.seq_len, config.batch_ramp, config.seq_len_ramp)

    @cached_property
    def optimizer(self) -> OptimizerChoice:
        """The optimizer with its learning rate and settings; imports torch.

        Raises:
            UserError: a setting that the optimizer does not have.
        """
        settings = optimizer_settings(self.config, self.plan.steps)
        return OptimizerChoice(self.plan.opt, self.peak_lr, settings, self.config.phase_lr_factor)

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

    @property
    def peak_lr(self) -> float:
        """Peak learning rate."""
        return self.plan.lr

    def schedule(self) -> Schedule:
        """0-based step -> factor of the peak learning rate.

        An extension of cos_inf keeps the schedule and lengthens its constant tail. An extension of any other schedule
        computes it again over all steps.
        """
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
            f"rate goes from {before * self.peak_lr:.3g} to {after * self.peak_lr:.3g} at step {seam}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The part of config.json that describes the run; its `config` has the number format that is used."""
        optimizer = self.optimizer
        return {
            "config": {**self.config.as_dict(), "dtype": self.dtype},
            "model": self.model.as_dict(),
            "plan": self.plan.as_dict(),
            "optimizer": {"name": optimizer.name, "lr": optimizer.lr, "settings": dict(optimizer.settings)},
            "execution": {"device_type": self.device_type, "compile": self.compile, "backend": self.backend},
            "steps": self.iterations,
            "params": self.plan.exact_params,
            "tokens_per_step": self.tokens_per_step,
            "lr_source": self.lr_source,
        }


Resolved = RunSpec
"""The name of `RunSpec` in version 0.1."""


def recorded_dtype(record: Mapping[str, Any]) -> str:
    """The number format of a run from its config.json; version 0.1 did not record an automatic one."""
    return record["config"].get("dtype") or ("float32" if record.get("device", "cpu") == "cpu" else "bfloat16")

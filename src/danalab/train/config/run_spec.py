"""A run with nothing left automatic: what is asked of it everywhere. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from danalab.models.config import ModelConfig
from danalab.optim.schedules import Schedule, get_schedule
from danalab.scaling import Plan, flops_per_token
from danalab.train.config.batch_schedule import Pace
from danalab.train.config.train_config import TrainConfig


@dataclass(frozen=True)
class Resolved:
    """A run, fully decided."""

    config: TrainConfig
    """With every automatic value filled in (device, dtype and compile, which depend on the machine, apart)."""
    model: ModelConfig
    plan: Plan
    run_dir: Path
    lr_source: str
    notes: tuple[str, ...] = ()
    """What a person should know about automatic choices."""

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

    @property
    def pace(self) -> Pace:
        """What each step consumes."""
        config = self.config
        return Pace.of(self.global_batch, self.seq_len, config.batch_ramp, config.seq_len_ramp)

    def flops(self, steps: int) -> int:
        """Training FLOPs of the first `steps` steps."""
        return self.pace.flops(steps, lambda length: flops_per_token(self.model, length))

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

        An extension keeps cos_inf as it was and makes its constant tail longer, so that nothing jumps. The other
        schedules are drawn anew over all steps.
        """
        config = self.config
        given = config.scheduler_settings()
        if config.scheduler.replace("-", "_") == "cos_inf" and self.iterations > self.plan.steps:
            given["cos_inf_steps"] = given.get("cos_inf_steps", 0) + self.iterations - self.plan.steps
        return get_schedule(config.scheduler, self.iterations, self.plan.warmup, **given)

    def jump(self) -> str | None:
        """How an extension raises the learning rate where the run would have ended; None where it doesn't."""
        seam = self.plan.steps
        if self.iterations == seam:
            return None
        planned = replace(self, config=replace(self.config, extend_to=None))
        before, after = planned.schedule()(seam - 1), self.schedule()(seam)
        if after <= 1.1 * before:
            return None
        return (
            f"--extend-to {self.iterations}: {self.config.scheduler} is drawn anew over all steps, so the learning "
            f"rate goes from {before * self.peak_lr:.3g} to {after * self.peak_lr:.3g} at step {seam}"
        )

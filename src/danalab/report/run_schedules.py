"""Which schedules `danalab optim schedules` draws. Needs neither torch nor matplotlib."""

from dataclasses import dataclass
from typing import ClassVar

from danalab.optim.settings import LogTime
from danalab.train.config.experiment import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class RunSchedules(ScheduleSettings):
    """Settings of the schedules of a run; several values of delta and kappa are drawn together."""

    title: ClassVar[str] = ""  # no section: `--help` lists them

    steps: int = 10_000
    """Length of the run [steps]."""
    lr: float = 1e-3
    """Peak learning rate."""
    delta: tuple[float, ...] = (LogTime.delta,)
    """Averaging windows, beta(t) = 1 - delta / (delta + t); several values are drawn together."""
    kappa: tuple[float, ...] = (LogTime.kappa,)
    """Exponents of the damping alpha(t) = (1 + t)^(1 - kappa); several values are drawn together."""
    momentum_cooldown: float = 0.0
    """Exponent c of the momentum's cooldown, beta(t) = 1 - delta / (delta + t s^c) with s = lr / peak; 0: none."""
    omega: float | None = None
    """Weight-decay strength, lambda(t) = omega / (wd_ts + t); default 4, unless --weight-decay is given."""
    horizon: float | None = None
    """wd_ts = horizon / 10 [steps]; default: the number of steps."""
    weight_decay: float | None = None
    """Initial weight decay, instead of --omega."""
    wd_ts: float | None = None
    """Time scale of its decay [steps]; default with --weight-decay: constant."""
    warmup_steps: int | None = None
    """Warm-up [steps]; default steps / 50."""

"""Settings of the learning-rate schedule. None means automatic."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from danalab.train.config.fields import Section, setting


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings(Section):
    """The schedule's name and settings."""

    title: ClassVar[str] = "schedule"

    scheduler: str = "cos_inf"
    """Learning-rate schedule: cos, linear, cos_inf, cos_restarts, wsd, powerlaw or none."""
    div_factor: float | None = None
    """Warm-up starts at peak / div_factor; default 100."""
    final_div_factor: float | None = None
    """The end is at peak / (div_factor final_div_factor): cos, linear (default 1), cos_inf and cos_restarts
    (default 0.1)."""
    cos_inf_steps: int | None = None
    """cos_inf: constant tail [steps]; default 0."""
    cycles: int | None = None
    """cos_restarts: cosines, each from the peak; default 4."""
    cycle_factor: float | None = None
    """cos_restarts: length of a cycle over that of the one before; default 1."""
    final_lr_scale: float | None = setting(None, aliases=("wsd-final-lr-scale",))
    """wsd: learning rate at the end, as a share of the peak; default 0."""
    fract_decay: float | None = setting(None, aliases=("wsd-fract-decay",))
    """wsd: share of the run that decays; default 0.1."""
    decay_type: str | None = None
    """wsd: linear (default), cosine, exp, mirror_cosine, square or sqrt."""
    power: float | None = None
    """powerlaw: exponent; default -0.5."""
    time_scale: float | None = None
    """powerlaw: time scale [steps]; default 1."""
    init_value: float | None = None
    """powerlaw: factor at the end of the warm-up; default 1."""
    saturation_value: float | None = None
    """powerlaw: bound of the factor; default 0 from below (power < 0) or 1 from above."""

    def scheduler_settings(self) -> dict[str, Any]:
        """The settings that were given, for `danalab.optim.get_schedule`."""
        names = [field.name for field in fields(ScheduleSettings) if field.name != "scheduler"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

"""Settings of the optimization: optimizer, loss, schedule, batch and length. None means automatic."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Lt

from danalab.optim.values import current_names
from danalab.train.config.fields import Count, Natural, NonNegative, Positive, Section, setting


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Section):
    """Optimizer, learning rate and weight decay."""

    title: ClassVar[str] = "optimizer"

    opt: str = setting("adana", main=True)
    """Optimizer; `danalab optim list` shows them."""
    lr: Positive | None = setting(None, main=True)
    """Peak learning rate; default by the fitted law, times --lr-multiplier."""
    lr_multiplier: NonNegative = setting(1.0, kind="input")
    """Factor on the fitted law's learning rate; has no effect on an explicit --lr."""
    rules: Path | None = setting(None, kind="input")
    """File of laws, decays and dimensions in place of the built-in ones; `danalab report --rules FILE` writes one."""
    phase_lr_factor: Positive = 1.0
    """resonance: factor on the learning rate of the oscillators' phases."""
    kappa: float = 0.85
    """The Dana family's damping exponent."""
    delta: float = 8.0
    """The Dana family's averaging window: beta(t) = 1 - delta / (delta + t)."""
    omega: NonNegative | None = None
    """Weight-decay strength, as in omega / t; default that of --rules, else 4."""
    clipsnr: float | None = None
    """Bound of the damped momentum's signal-to-noise ratio; default 2, for the optimizers that clip."""
    gamma3: float | None = setting(None, aliases=("gamma-3-factor",))
    """Scale of the Dana family's momentum term; default 1."""
    beta1: float | None = None
    """First of the optimizer's betas, AdamW's rate of the first moment; default as `danalab optim list --opt` shows."""
    beta2: float | None = None
    """Second of the optimizer's betas, AdamW's rate of the second moment; default as there.
    adana and its clipped and tau variants: a constant rate in place of beta(t)."""
    weight_decay: float | None = None
    """Default omega / wd_ts (independent of the learning rate) or omega / (lr iterations) (coupled: adamw)."""
    wd_ts: float | None = setting(None, aliases=("wd-ts-const",))
    """Time scale of the decaying weight decay [steps]; default iterations / wd-ts-divisor."""
    wd_ts_divisor: Positive = 10.0
    """Where --wd-ts isn't given: iterations / wd-ts-divisor."""
    decay_bound: NonNegative | None = None
    """Largest weight decay, times the peak learning rate; 0: no bound. Default 2 for log-time optimizers,
    1 for others, 0 with --weight-decay."""
    optimizer_settings: dict[str, Any] = setting(factory=dict)
    """Further settings of the optimizer, by name; on the command line each is a flag of its own."""

    def check(self) -> None:
        """Write the optimizer's settings as JSON has them: a run is compared with its config.json."""
        super().check()
        settings = {
            name.replace("-", "_"): list(value) if isinstance(value, tuple) else value
            for name, value in self.optimizer_settings.items()
        }
        object.__setattr__(self, "optimizer_settings", dict(sorted(current_names(settings).items())))


@dataclass(frozen=True, kw_only=True)
class LossSettings(Section):
    """The loss that is minimised."""

    title: ClassVar[str] = "loss"

    seed: Annotated[int, Ge(0), Lt(2**64)] = setting(0, main=True)
    """Seed of the initial weights."""
    grad_clip: NonNegative = 0.5
    """Largest Euclidean norm of the gradient; 0: no clipping."""
    z_loss: NonNegative = setting(1e-4, aliases=("z-loss-coeff",))
    """Weight of mean(logsumexp^2) in the minimised loss; never part of a reported loss."""
    hoyer_loss: NonNegative = 0.0
    """Weight of the mean of |e|_1 / |e|_2 over embedded tokens, to make them sparse; never part of a reported loss."""
    renormalise: bool | None = None
    """Divide the weights of a token's experts by their sum; default yes."""
    load_balance_loss: float | None = None
    """Weight of the load-balancing loss, which is 1 where experts are used evenly; default 0.01."""
    router_z_loss: float | None = None
    """Weight of mean(logsumexp^2) of the routers' logits; default 0.001."""
    router_entropy_loss: float | None = None
    """Weight of minus the entropy of the mean routing distribution [nats]; default 0."""


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


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Section):
    """Batch and length of the run."""

    title: ClassVar[str] = "batch and length"

    batch_size: Count | None = setting(None, kind="execution", main=True)
    """Sequences of one micro-batch on one rank; default 32, or a divisor of --global-batch."""
    acc_steps: Count | None = setting(None, kind="execution", aliases=("gradient-accumulation",))
    """Micro-batches in a step; default 1, or the number that --global-batch needs."""
    global_batch: Count | None = None
    """Sequences in a step, over all ranks and micro-batches; default batch-size x ranks x acc-steps."""
    batch_ramp: str | None = None
    """Smaller global batches at first: SEQUENCES:STEP,...; 8:1000,16:3000 is 8 before step 1000, 16 before 3000."""
    iterations: Count | None = setting(None, main=True)
    """Length of the run [steps]; default by --tokens-per-param."""
    epochs: Positive | None = setting(None, kind="input")
    """Length of the run in passes over the data, in place of --iterations."""
    tokens_per_param: NonNegative = setting(20.0, kind="input")
    """Length of the run where --iterations isn't given [tokens/parameter]."""
    horizon_basis: Literal["total", "non-emb"] = setting("total", kind="input")
    """Parameters that --tokens-per-param counts."""
    warmup_steps: Natural | None = None
    """Warm-up [steps]; default iterations / 50; in short runs iterations / 10, up to 4."""

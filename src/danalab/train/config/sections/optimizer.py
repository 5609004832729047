"""Settings of the optimizer and of the loss. None means automatic."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from danalab.optim.registry.spec import current_names
from danalab.train.config.fields import NonNegative, Positive, Section, setting


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

"""Settings of the optimizers: defaults, one class for each family, which constructors take by `takes`; and help texts.

Needs no torch. `RANGES` are those of all optimizers of the Dana family and of Adam's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Concatenate, ParamSpec

from danalab.errors import UserError, nearest

P = ParamSpec("P")


_NOT_NEGATIVE = (lambda x: x >= 0, "not negative")
_POSITIVE = (lambda x: x > 0, "positive")
_SHARE = (lambda x: 0 <= x <= 1, "between 0 and 1")

RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("delta", "wd_ts", "alpha_warmup", "beta3_warmup", "significance"), _POSITIVE),
    **dict.fromkeys(("lr", "peak_lr", "eps", "gamma3", "alpha", "alpha_offset", "clipsnr"), _NOT_NEGATIVE),
    **dict.fromkeys(("weight_decay", "decay_bound", "matched_rms", "momentum_cooldown"), _NOT_NEGATIVE),
    **dict.fromkeys(("kappa", "kappa_min", "kappa_max"), _SHARE),
    "beta2": (lambda x: 0 <= x < 1, "in [0, 1)"),
}
"""Setting -> whether a number is in its range, and that range in words; for the optimizers of torch and of optax."""


class UnknownSetting(UserError, TypeError):
    """A constructor was given a setting that its optimizer does not have."""


@dataclass(frozen=True)
class Rate:
    lr: float = 1e-3


@dataclass(frozen=True)
class LogTime(Rate):
    """Averages in logarithmic time, and the momentum term."""

    _: KW_ONLY
    delta: float = 8.0
    kappa: float = 0.85
    eps: float = 1e-8
    gamma3: float = 1.0
    alpha_offset: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CautiousDecay:
    cautious_decay: bool = False
    scaled_decay: bool = False


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Independent, decaying weight decay in either form."""

    weight_decay: float = 0.0
    wd_ts: float | None = None
    omega: float | None = None
    horizon: float | None = None
    decay_bound: float | None = None
    cautious_decay: bool = False
    scaled_decay: bool = False


@dataclass(frozen=True, kw_only=True)
class BackEnd:
    foreach: bool | None = None
    fused: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Runtime(BackEnd):
    """How a step is computed."""

    capturable: bool = False
    maximize: bool = False
    stochastic_rounding: bool = False


@dataclass(frozen=True, kw_only=True)
class Formats(Runtime):
    state_dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class _Averages:
    beta2: float | None = None
    momentum_cooldown: float = 0.0


@dataclass(frozen=True)
class ADanaSettings(Formats, _Averages, Decay, LogTime):
    pass


@dataclass(frozen=True, kw_only=True)
class DanaMK4Settings(ADanaSettings):
    clipsnr: float = 2.0


@dataclass(frozen=True, kw_only=True)
class _Cooldown:
    momentum_cooldown: float = 0.0


@dataclass(frozen=True)
class _Unnormalised(Rate):
    _: KW_ONLY
    delta: float = 8.0
    kappa: float = 0.85
    gamma3: float = 1.0
    alpha_offset: float = 0.0


@dataclass(frozen=True)
class DanaSettings(Formats, _Cooldown, Decay, _Unnormalised):
    pass


@dataclass(frozen=True)
class SignDanaSettings(DanaSettings):
    lr: float = 1e-4
    _: KW_ONLY
    alpha_offset: float = 1.0


@dataclass(frozen=True)
class _OnlineKappa(Rate):
    _: KW_ONLY
    delta: float = 8.0
    kappa_min: float = 0.75
    kappa_max: float = 1.0
    significance: float = 2.0
    eps: float = 1e-8
    gamma3: float = 1.0
    alpha_offset: float = 1.0


@dataclass(frozen=True)
class AutoDanaSettings(Formats, Decay, _OnlineKappa):
    pass


@dataclass(frozen=True)
class Adam(Rate):
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class AdamWDecayingWDSettings(Formats, Decay, Adam):
    pass


@dataclass(frozen=True)
class _Mixing(Rate):
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999)
    eps: float = 1e-8
    _: KW_ONLY
    alpha: float = 2.0
    alpha_warmup: float | None = None
    beta3_warmup: float | None = None
    gamma3: float = 1.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdEMAMixSettings(Runtime, CautiousDecay, _Mixing):
    pass


@dataclass(frozen=True)
class AdEMAMixDecayingWDSettings(Runtime, Decay, _Mixing):
    pass


@dataclass(frozen=True)
class Orthogonal(Rate):
    """Orthogonalised momentum."""

    _: KW_ONLY
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    ns_method: str = "newton-schulz"
    ns_dtype: str | Any | None = None


@dataclass(frozen=True, kw_only=True)
class Auxiliary:
    """Weight decay of matrices, and the rate and decay of other parameters."""

    weight_decay: float = 0.0
    aux_lr: float | None = None
    aux_lr_factor: float = 1.0
    aux_weight_decay: float | None = None


@dataclass(frozen=True, kw_only=True)
class AuxiliaryAdam(Auxiliary):
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8


@dataclass(frozen=True, kw_only=True)
class _OwnRuntime(BackEnd):
    maximize: bool = False
    stochastic_rounding: bool = False


@dataclass(frozen=True)
class MuonSettings(_OwnRuntime, AuxiliaryAdam, CautiousDecay, Orthogonal):
    lr: float = 0.02
    _: KW_ONLY
    aux_lr_factor: float = 0.15


@dataclass(frozen=True)
class DMuonSettings(MuonSettings):
    lr: float = 1e-3
    _: KW_ONLY
    matched_rms: float = 0.2
    aux_lr_factor: float = 1.0
    betas: tuple[float, float] = (0.8, 0.999)


@dataclass(frozen=True, kw_only=True)
class _DanaForTheRest:
    dana_momentum: bool = False
    delta: float = 8.0
    kappa: float = 0.85
    clipsnr: float = 2.0
    eps: float = 1e-8
    gamma3: float = 1.0
    alpha_offset: float = 1.0
    wd_ts: float | None = None


@dataclass(frozen=True)
class ManauSettings(_OwnRuntime, Auxiliary, CautiousDecay, _DanaForTheRest, Orthogonal):
    _: KW_ONLY
    matched_rms: float = 0.2


def takes(
    settings: Callable[P, Any],
) -> Callable[[Callable[[Any, Any, dict[str, Any]], None]], Callable[Concatenate[Any, Any, P], None]]:
    """A constructor of (params, settings as a dict) takes params and the fields of `settings`, and has their signature.

    Raises:
        UnknownSetting: names what the optimizer does not have.
    """
    own = inspect.signature(settings).parameters
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]

    def decorate(init: Callable[[Any, Any, dict[str, Any]], None]) -> Callable[Concatenate[Any, Any, P], None]:
        @functools.wraps(init)
        def constructor(self: Any, params: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in own:
                    hint = "" if name == "betas" else nearest(name, own)
                    them = "them" if name.endswith("s") else "it"
                    raise UnknownSetting(f"{type(self).__name__} has no {name}{hint}; remove {them}")
            init(self, params, dict(vars(settings(*args, **kwargs))))

        constructor.__signature__ = inspect.Signature([*first, *own.values()])  # pyright: ignore
        return constructor

    return decorate


HELP = {
    "aux_lr": "peak learning rate of parameters that are not matrices; none = aux_lr_factor x lr",
    "aux_lr_factor": "learning rate of parameters that are not matrices, as a multiple of lr",
    "aux_weight_decay": "weight decay of parameters that are not matrices; none = weight_decay",
    "alpha": "weight of the slow momentum",
    "alpha_warmup": "steps until alpha has grown from 0; none = at once",
    "alpha_offset": "added to the damping (1+t)^(1-kappa); 1 = published implementation, 0 = the paper's formula",
    "amsgrad": "keep the maximum of the second moment",
    "beta2": "constant rate of the second moment, corrected as Adam's; none = beta(t)",
    "beta3_warmup": "steps until the slow momentum's rate has grown from the fast one's; none = at once",
    "betas": "rates of the first and second moment",
    "capturable": "keep the step count on the device, for CUDA graphs",
    "cautious_decay": "decay only coordinates that the step moves towards zero",
    "clipsnr": "bound of the damped momentum's signal-to-noise ratio",
    "dana_momentum": "log-time momentum for matrices",
    "decay_bound": "largest weight decay, times the peak learning rate; 0 = no bound; none = by omega, else 0",
    "decoupled_weight_decay": "decay weights directly; otherwise weight decay is added to the gradient",
    "delta": "averages weight a new gradient by delta/(delta+t)",
    "differentiable": "let gradients flow through the step",
    "eps": "added to the root of the second moment",
    "flat_start": "steps at the start that all fit the preconditioner; later fewer do",
    "foreach": "work on lists of parameters",
    "fused": "one compiled pass over memory",
    "fraction": "part of the rows or columns that a step moves",
    "gamma3": "scale of the momentum term",
    "hessian_interval": "steps between estimates of the curvature",
    "horizon": "length of the run [steps], with omega; wd_ts = horizon/10",
    "kappa": "exponent of the damping (1+t)^(1-kappa)",
    "kappa_max": "kappa of coordinates whose gradients are noise",
    "kappa_min": "kappa of coordinates whose gradients agree",
    "k": "inner steps per outer step",
    "lr_outer": "learning rate of the outer step",
    "matched_rms": "root mean square of a matrix's update",
    "maximize": "maximize the objective",
    "momentum": "rate of the matrices' momentum",
    "momentum_cooldown": "exponent c: the momentum's memory is t (lr / peak_lr)^c / delta; 0 = no cooldown",
    "mu": "rate of the outer step's Nesterov momentum",
    "nesterov": "add the momentum to the gradient",
    "ns_dtype": "dtype of the orthogonalisation; none = bfloat16 on GPUs, float32 on CPUs",
    "ns_method": "orthogonalisation: newton-schulz or polar-express",
    "ns_steps": "steps of the orthogonalisation",
    "other_radius": "scale of the steps of embeddings and heads",
    "omega": "strength of decaying weight decay omega/(wd_ts+t), instead of weight_decay",
    "precondition_frequency": "steps between new eigenbases",
    "radius": "scale of the steps of hidden matrices and vectors",
    "rho": "scale of the curvature in the denominator; larger values clip less",
    "scaled_decay": "multiply weight decay by lr / peak lr once more",
    "significance": "standard deviations of noise above which momentum counts as signal",
    "state_dtype": "format of the moments: float32, bf16+8 (3 bytes) or 8bit (1 byte and scales), rounded at random",
    "stochastic_rounding": "round 16-bit parameters up or down at random",
    "wd_ts": "time scale of the decay of weight decay [steps]; none = constant",
    "weight_decay": "weight decay of matrices and heads",
}

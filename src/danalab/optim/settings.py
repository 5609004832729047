"""Settings of the optimizers with their defaults, one class for each family: constructors take them by `takes`.

Needs no torch. Help texts are in `danalab.optim.registry.catalogue.help_texts`, ranges in `danalab.optim.core.checks`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Concatenate, ParamSpec

from danalab.errors import UserError, nearest

P = ParamSpec("P")


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

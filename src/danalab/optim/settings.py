"""Settings of the optimizers: defaults, ranges and help, from which constructors, flags and documentation are made.

Needs no torch. A class declares the settings of a family: `class ADanaSettings(Formats, Decay, LogTime)` has those of
its bases, the last base's first. `takes` makes a constructor of one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY
from functools import partial
from importlib import import_module
from operator import le, lt
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NamedTuple, ParamSpec

from danalab.errors import UserError, nearest

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda declared: declared


P = ParamSpec("P")

Range = tuple[Callable[[float], bool], str]
"""Whether a number is in it, and its name in words."""


def _is_below_one(x: float) -> bool:
    return 0 <= x < 1


NOT_NEGATIVE: Range = (partial(le, 0), "not negative")  # no lambdas: optimizers are pickled with their settings
POSITIVE: Range = (partial(lt, 0), "positive")
SHARE: Range = (lambda x: 0 <= x <= 1, "between 0 and 1")
BELOW_ONE: Range = (_is_below_one, "in [0, 1)")

KINDS = ("embedding", "matrix", "experts", "router", "head", "vector")
"""Of parameters: `experts` are stacked matrices [experts, rows, columns]; vectors are gains, biases and rates of any
shape. `danalab.optim.optimizers.kinds` tells them apart."""

RANGES: dict[str, Range] = {
    **dict.fromkeys(("delta", "wd_ts", "alpha_warmup", "beta3_warmup", "significance"), POSITIVE),
    **dict.fromkeys(("lr", "peak_lr", "eps", "gamma3", "alpha", "alpha_offset", "clipsnr"), NOT_NEGATIVE),
    **dict.fromkeys(("weight_decay", "decay_bound", "matched_rms", "momentum_cooldown"), NOT_NEGATIVE),
    **dict.fromkeys(("kappa", "kappa_min", "kappa_max", "fresh"), SHARE),
    "beta2": BELOW_ONE,
    "power": (lambda x: True, "of either sign"),
    "buffers": (lambda x: x >= 1 and x == int(x), "a whole number, at least 1"),
}
"""Setting that several optimizers share -> its range; for the optimizers of torch and of optax. Other settings have it
beside their default: `setting`."""


class Declared(NamedTuple):
    """A setting's default with what is said about it."""

    default: Any
    help: str
    within: Range | None


def setting(default: Any, help: str, within: Range | None = None) -> Any:
    """A default with its help and its range, `rms_floor: float = setting(1e-3, "least root of v", POSITIVE)`."""
    return Declared(default, help, within)


class UnknownSetting(UserError, TypeError):
    """A constructor was given a setting that its optimizer does not have."""


@dataclass_transform(field_specifiers=(setting,))
class Settings:
    """A declaration: annotated defaults, by keyword only after `_: KW_ONLY` or in a class with `kw_only=True`.

    Type checkers read it as a data class. It has a signature and no instances: 29 data classes take 30 ms to define.
    """

    _own: ClassVar[dict[str, inspect.Parameter]] = {}
    declared: ClassVar[dict[str, Declared]] = {}
    """The settings that were declared by `setting`, those of the bases among them."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        cls._own, kind = {}, inspect.Parameter.KEYWORD_ONLY if kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        for name, annotation in inspect.get_annotations(cls).items():
            if annotation is KW_ONLY or annotation == "KW_ONLY":
                kind = inspect.Parameter.KEYWORD_ONLY
            else:
                default = vars(cls).get(name, inspect.Parameter.empty)
                if isinstance(default, Declared):
                    cls.declared = {**cls.declared, name: default}
                    default = default.default
                    setattr(cls, name, default)
                cls._own[name] = inspect.Parameter(name, kind, default=default, annotation=annotation)
        joined: dict[str, inspect.Parameter] = {}
        for base in reversed(cls.__mro__):
            joined |= vars(base).get("_own", {})
            cls.declared = {**cls.declared, **vars(base).get("declared", {})}
        cls.__signature__ = inspect.Signature(sorted(joined.values(), key=lambda each: each.kind))


def takes(settings: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Any, P], None]]:
    """Make a constructor of `params` and settings, which hands them to `setup(params, settings as a dict)`.

        @takes(ADanaSettings)
        def __init__(self, params, settings): ...

    Args:
        settings: a class of settings, or anything whose signature declares them.
    Raises:
        UnknownSetting: (the constructor) names what the optimizer does not have.
    """
    own = inspect.signature(settings)
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, Any, P], None]:
        @functools.wraps(init)
        def constructor(self: Any, params: Any, *args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in own.parameters:
                    raise UnknownSetting(f"{type(self).__name__} has no {name}{_way_out(name, own.parameters, kwargs)}")
            given = own.bind(*args, **kwargs)
            given.apply_defaults()
            self.setup(params, plain_settings(given.arguments))

        constructor.declared = getattr(settings, "declared", {})  # pyright: ignore
        constructor.__signature__ = inspect.Signature([*first, *own.parameters.values()])  # pyright: ignore
        of_params = {"params": "a model, parameters, named parameters, or groups of them"}
        constructor.__doc__ = described(("params", *own.parameters), of_params)
        return constructor

    return decorate


def described(names: Iterable[str], own: Mapping[str, str]) -> str:
    """The section `Args` of a docstring, by `HELP` and texts of one's own."""
    texts = {**HELP, **own}
    return "\n".join(["Args:", *(f"    {name}: {texts[name]}." for name in names if name in texts)])


def _way_out(name: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> str:
    """What to do about a setting that an optimizer does not have."""
    if name in ("omega", "horizon") and "weight_decay" in known:
        try:
            equal = f"weight_decay={given['omega'] / (given.get('lr', known['lr'].default) * given['horizon']):.3g}"
        except (KeyError, TypeError, ZeroDivisionError):
            equal = "weight_decay=omega / (lr * horizon)"
        return f"; the equal setting is {equal}"
    if others := import_module("danalab.optim.values").those_with(name):  # which needs this module
        return f"; remove it, or use one of {others}"
    hint = "" if name == "betas" else nearest(name, known)
    return f"{hint}; remove {'them' if name.endswith('s') else 'it'}"


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, or a group, with Python's numbers in place of numpy's, and tensors of one element as 0-dim ones."""
    return {name: value if name in ("params", "param_names") else _plain(value) for name, value in settings.items()}


def _plain(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    if type(value).__module__ == "numpy" and value.ndim == 0:
        return value.item()
    is_tensor = hasattr(value, "numel") and value.ndim and value.numel() == 1
    return value.view(()) if is_tensor else value  # a view, since schedules write into it


class Rate(Settings):
    lr: float = 1e-3


class LogTime(Settings, kw_only=True):
    """Averages in logarithmic time, and the momentum term."""

    delta: float = 8.0
    kappa: float = 0.85
    eps: float = 1e-8
    gamma3: float = 1.0
    alpha_offset: float = 1.0


class CautiousDecay(Settings, kw_only=True):
    cautious_decay: bool = False
    scaled_decay: bool = False


class Decay(Settings, kw_only=True):
    """Independent, decaying weight decay in either form."""

    weight_decay: float = 0.0
    wd_ts: float | None = None
    omega: float | None = None
    horizon: float | None = None
    decay_bound: float | None = None
    cautious_decay: bool = False
    scaled_decay: bool = False


class Direction(Settings, kw_only=True):
    maximize: bool = False


class BackEnd(Settings, kw_only=True):
    foreach: bool | None = None
    fused: bool | None = None


class MuonRuntime(Direction, BackEnd, kw_only=True):
    stochastic_rounding: bool = False


class Runtime(BackEnd, kw_only=True):
    """How a step is computed."""

    capturable: bool = False
    maximize: bool = False
    stochastic_rounding: bool = False


class Formats(Runtime, kw_only=True):
    state_dtype: str = "float32"


class SecondMoment(Settings, kw_only=True):
    beta2: float | None = None


class Averages(SecondMoment, kw_only=True):
    momentum_cooldown: float = 0.0


class Age(Settings, kw_only=True):
    """The momentum's memory, instead of the optimizer's own; see `danalab.optim.rules.age`."""

    age: str | None = None
    fresh: float | None = None


class Memory(Age, kw_only=True):
    buffers: int = 1
    buffer_ages: tuple[float, float] = (5.0, 200.0)


class ADanaSettings(Formats, Memory, Averages, Decay, LogTime, Rate):
    pass


class DanaMK4Settings(ADanaSettings, kw_only=True):
    clipsnr: float = 2.0


class DanaSettings(Formats, Memory, Decay, Rate):
    _: KW_ONLY
    delta: float = LogTime.delta
    kappa: float = LogTime.kappa
    gamma3: float = LogTime.gamma3
    alpha_offset: float = 0.0
    momentum_cooldown: float = 0.0


class SignDanaSettings(DanaSettings):
    lr: float = 1e-4
    _: KW_ONLY
    alpha_offset: float = 1.0


class AutoDanaSettings(Formats, Memory, Decay, Rate):
    _: KW_ONLY
    delta: float = LogTime.delta
    kappa_min: float = setting(default=0.75, help="kappa of coordinates whose gradients agree")
    kappa_max: float = setting(default=1.0, help="kappa of coordinates whose gradients are noise")
    significance: float = setting(2.0, "standard deviations of noise above which momentum counts as signal")
    eps: float = 1e-8
    gamma3: float = 1.0
    alpha_offset: float = 1.0


class Adam(Rate):
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


class AdamWDecayingWDSettings(Formats, Decay, Adam):
    pass


class Mixing(Rate):
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999)
    eps: float = 1e-8
    _: KW_ONLY
    alpha: float = 2.0
    alpha_warmup: float | None = None
    beta3_warmup: float | None = None
    gamma3: float = 1.0
    weight_decay: float = 0.0


class AdEMAMixSettings(Runtime, CautiousDecay, Mixing):
    pass


class AdEMAMixDecayingWDSettings(Runtime, Decay, Mixing):
    pass


class NewtonSchulz(Settings, kw_only=True):
    ns_steps: int = 5
    ns_method: str = "newton-schulz"
    ns_dtype: str | Any | None = None


class Orthogonal(NewtonSchulz, kw_only=True):
    """Orthogonalised momentum."""

    momentum: float = 0.95
    nesterov: bool = True


class Auxiliary(Settings, kw_only=True):
    """Weight decay of matrices in either form, and the rate and decay of other parameters."""

    weight_decay: float = 0.0
    omega: float | None = None
    horizon: float | None = None
    decay_bound: float | None = None
    aux_lr: float | None = None
    aux_lr_factor: float | None = 1.0
    aux_weight_decay: float | None = None
    by_kind: Mapping[str, Mapping[str, Any]] | None = None


class Orthogonalised(Settings, kw_only=True):
    """Of what a matrix is orthogonalised by, and what is done with the result."""

    normalise: str | None = setting(
        default=None,
        help="what has equal norms after O: rows, columns, rows-columns, columns-rows; normuon: see row_beta",
    )
    row_beta: float = setting(default=0.95, help="rate of the rows' second moment of normuon", within=BELOW_ONE)
    per_head: bool = setting(default=False, help="orthogonalise each attention head of queries, keys and values")


class Around(Orthogonalised, kw_only=True):
    """What is done around the orthogonalisation of a matrix."""

    hold_norm: bool = setting(default=False, help="steps of angle lr that keep a matrix's norm, without weight decay")
    uw_floor: float = setting(default=0.0, help="least |update| / lr of a matrix, in units of |p|", within=NOT_NEGATIVE)


class AuxiliaryAdam(Auxiliary, kw_only=True):
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8


class MuonSettings(MuonRuntime, Around, AuxiliaryAdam, CautiousDecay, Memory, Orthogonal, Rate):
    lr: float = 0.02
    _: KW_ONLY
    aux_lr_factor: float | None = 0.15


class DMuonSettings(MuonSettings):
    lr: float = 0.016
    _: KW_ONLY
    matched_rms: float = 0.2
    aux_lr_factor: float | None = 1.0
    betas: tuple[float, float] = (0.8, 0.999)


DANA_MUON_FACTORS = {"vector": 0.0625, "": 0.25}
"""Kind of parameter ("": the other ones) -> DanaMuon's learning rate for it, in units of that of matrices.

Measured on five problems in bench/first_line.py. Equal rates are too large: a step of the Dana family is several times
as long as its learning rate, and vectors (gains, biases) have few gradients that agree.
"""


class DanaMuonSettings(
    MuonRuntime, Around, Auxiliary, CautiousDecay, Memory, SecondMoment, LogTime, NewtonSchulz, Rate
):
    lr: float = 0.032
    _: KW_ONLY
    matched_rms: float = 0.2
    clipsnr: float = 2.0
    wd_ts: float | None = None
    aux_lr_factor: float | None = None


class ManauSettings(DanaMuonSettings, Orthogonal):
    lr: float = 0.016
    _: KW_ONLY
    dana_momentum: bool = setting(default=False, help="log-time momentum for matrices")
    aux_lr_factor: float | None = 1.0


class AdamHSettings(Direction, AuxiliaryAdam, Rate):
    lr: float = 0.018
    _: KW_ONLY
    aux_lr_factor: float | None = 0.15


class MuonHSettings(Orthogonalised, AdamHSettings, Orthogonal):
    pass


class Dion2Settings(Direction, AuxiliaryAdam, CautiousDecay, NewtonSchulz, Rate):
    lr: float = 0.02
    _: KW_ONLY
    fraction: float = setting(default=0.25, help="part of the rows or columns that a step moves")
    momentum: float = 0.95
    aux_lr_factor: float | None = 0.15


class ScionSettings(Direction, Orthogonalised, Auxiliary, CautiousDecay, NewtonSchulz, Rate):
    lr: float = 3.6e-4
    _: KW_ONLY
    momentum: float = 0.9
    radius: float = setting(default=50.0, help="scale of the steps of hidden matrices and vectors")
    other_radius: float = setting(default=3000.0, help="scale of the steps of embeddings and heads")


class AdamMiniSettings(Direction, AuxiliaryAdam, CautiousDecay, Rate):
    pass


class KLSOAPSettings(NewtonSchulz, AdamMiniSettings):
    lr: float = 3e-3
    _: KW_ONLY
    betas: tuple[float, float] = (0.95, 0.9)
    shampoo_beta: float = setting(default=0.9, help="rate of the factors' averages", within=BELOW_ONE)
    precondition_frequency: int = setting(default=10, help="steps between new eigenbases", within=POSITIVE)
    orthogonalise: bool = setting(default=False, help="orthogonalise the update, as D-Muon does the momentum")


class KronSettings(AdamMiniSettings):
    lr: float = 3e-4
    _: KW_ONLY
    momentum: float = 0.9
    flat_start: int = setting(default=500, help="steps at the start that all fit the preconditioner; later fewer do")
    aux_lr_factor: float | None = 3.0


HELP = {
    "age": "mean age of the momentum's gradients [steps], as a path: constant(20), log_time(8), follow(8, 60, 1, 8) =\
 log time up to 60 lr / peak_lr, at least 8; none = the optimizer's own memory",
    "aux_lr": "peak learning rate of parameters that are not matrices; none = aux_lr_factor x lr",
    "aux_lr_factor": "learning rate of parameters that are not matrices, in units of lr",
    "aux_weight_decay": "weight decay of parameters that are not matrices; none = weight_decay",
    "alpha": "weight of the slow momentum",
    "alpha_warmup": "steps until alpha has grown from 0; none = at once",
    "alpha_offset": "added to the damping (1+t)^(1-kappa); 1 = published implementation, 0 = the paper's formula",
    "amsgrad": "keep the maximum of the second moment",
    "beta2": "constant rate of the second moment, corrected as Adam's; none = beta(t)",
    "beta3_warmup": "steps until the slow momentum's rate has grown from the fast one's; none = at once",
    "betas": "rates of the first and second moment",
    "by_kind": "settings of kinds of parameters, as in embedding:lr=2e-3,beta2=0.995 head:lr_factor=0.1, the latter in"
    " units of lr; kinds: embedding, matrix, experts, router, head, vector",
    "buffer_ages": "mean ages of the first and last of several buffers, the others log-spaced between [steps]",
    "buffers": "averages that the momentum is mixed of, with weights by age; 1 = one average that follows age itself",
    "capturable": "keep the step count on the device, for CUDA graphs",
    "cautious_decay": "decay only coordinates that the step moves towards zero",
    "clipsnr": "bound of the damped momentum's signal-to-noise ratio",
    "decay_bound": "largest weight decay, times the peak learning rate; 0 = no bound; none = by omega, else 0",
    "decoupled_weight_decay": "decay weights directly; otherwise weight decay is added to the gradient",
    "delta": "averages weight a new gradient by delta/(delta+t)",
    "differentiable": "let gradients flow through the step",
    "eps": "added to the root of the second moment",
    "foreach": "work on lists of parameters",
    "fused": "one compiled pass over memory",
    "fresh": "share of the new gradient in the update, that of the momentum is the rest; none = the optimizer's own",
    "gamma3": "scale of the momentum term",
    "horizon": "length of the run [steps], with omega; wd_ts = horizon/10; none = not known: wd_ts, by default 100",
    "kappa": "exponent of the damping (1+t)^(1-kappa)",
    "k": "inner steps per outer step",
    "lr_outer": "learning rate of the outer step",
    "matched_rms": "root mean square of a matrix's update",
    "maximize": "maximize the objective",
    "momentum": "rate of the matrices' momentum",
    "momentum_cooldown": "exponent c: the momentum's memory is t (lr / peak_lr)^c / delta; 0 = no cooldown",
    "mu": "rate of the outer step's Nesterov momentum",
    "nesterov": "add the momentum to the gradient",
    "ns_dtype": "dtype of the orthogonalisation; none = bfloat16 on GPUs, and from 128 rows on CPUs that multiply it",
    "ns_method": "orthogonalisation: newton-schulz or polar-express",
    "ns_steps": "steps of the orthogonalisation",
    "omega": "strength of decaying weight decay omega/(wd_ts+t), instead of weight_decay",
    "scaled_decay": "multiply weight decay by lr / peak lr once more",
    "state_dtype": "format of the moments: float32, bf16+8 (3 bytes) or 8bit (1 byte and scales), rounded at random",
    "stochastic_rounding": "round 16-bit parameters up or down at random",
    "wd_ts": "time scale of the decay of weight decay [steps]; none = constant",
    "weight_decay": "weight decay of matrices and heads",
}

"""The Dana family as optax gradient transformations, the same numbers as the PyTorch classes.

    import optax
    from danalab.optim.optax import adana

    optimizer = adana(1e-3, weight_decay=0.04, wd_ts=1000, decay_mask=lambda params: ...)
    state = optimizer.init(params)
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)

The update rules are those of `danalab.optim.jax_rules`. After the Dana family's comes the independent weight decay
p <- p (1 - s(t) weight_decay / (1 + t / wd_ts)), with s the learning rate divided by its peak. `dana_muon` has its own.
Source: arXiv 2602.05298.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from types import SimpleNamespace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from danalab.errors import MissingExtra, UserError

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise MissingExtra("optax", "danalab.optim.optax") from error

from danalab.optim.jax_rules import Moments, dana_step, muon_step, zero_moments
from danalab.optim.optimizers.checks import (
    OMEGA,
    check_first_decay,
    check_numbers,
    omega_decay,
    resolve_decay,
    with_coupled_decay,
)
from danalab.optim.optimizers.kinds import kinds_by_names
from danalab.optim.optimizers.matrix.newton_schulz import coefficients
from danalab.optim.rules.age import age_path, mixture
from danalab.optim.run_length import LOG_TIME_DECAY_BOUND
from danalab.optim.settings import (
    DANA_MUON_FACTORS,
    RANGES,
    Age,
    Averages,
    CautiousDecay,
    DanaMK4Settings,
    Decay,
    LogTime,
    Memory,
    SecondMoment,
    described,
    plain_settings,
)

__all__ = ["DanaState", "adana", "dana_mk4", "dana_muon", "dana_star", "dana_star_mk4"]

ScalarOrSchedule = float | jax.Array | Callable[[Any], Any]
"""A learning rate, or a function of the 0-based number of the step."""

P = ParamSpec("P")
S = TypeVar("S")


class DanaState(NamedTuple):
    """State of a member of the family."""

    calls: jax.Array
    """Calls of `update` so far, the argument of a learning-rate schedule."""
    steps: Any
    """Updates applied to each parameter: one behind `calls` for every call in which its gradient was None."""
    m: Any
    """First moment, float32 (float64 for float64 parameters); of several `buffers` their averages, [buffers, ...]."""
    v: Any
    """Second moment; for a matrix of `dana_muon` a number, 0, and so is tau."""
    tau: Any
    """Activity estimate of the star members; None for the others."""
    age: Any = None
    """Mean age of each first moment [steps], where it has a path; else None."""


class _Memory(Age, kw_only=True):
    """With `buffers` None for one, which optax.inject_hyperparams does not trace."""

    buffers: int | None = None
    buffer_ages: tuple[float, float] = Memory.buffer_ages


class _Settings(_Memory, Averages, Decay, LogTime):
    """Settings of all members; `adana` says what they are."""

    learning_rate: ScalarOrSchedule
    _: KW_ONLY
    peak_lr: float | None = None
    decay_mask: Any = None


class _ClippedSettings(_Settings, kw_only=True):
    """With `clipsnr`, the largest damped momentum; None: no clipping."""

    clipsnr: float | None = DanaMK4Settings.clipsnr


class _MuonSettings(_Memory, SecondMoment, CautiousDecay, LogTime):
    """Settings of `dana_muon`."""

    learning_rate: ScalarOrSchedule
    _: KW_ONLY
    weight_decay: float = 0.0
    omega: float | None = None
    horizon: float | None = None
    decay_bound: float | None = None
    wd_ts: float | None = None
    matched_rms: float = 0.2
    clipsnr: float | None = DanaMK4Settings.clipsnr
    ns_steps: int = 5
    ns_method: str = "newton-schulz"
    aux_lr_factor: float | None = None
    peak_lr: float | None = None
    decay_mask: Any = None
    matrices: Any = None


_ABSENT: dict[str, Any] = {"momentum_cooldown": 0.0}
_ABSENT |= dict.fromkeys(("clipsnr", "beta2", "omega", "horizon", "decay_bound"))
"""Settings that some members do not take."""


_CHOICE = "tree of booleans, or a function of the parameters that gives one: which parameters"
_TEXTS = {
    "learning_rate": "a number or a schedule of the 0-based step",
    "peak_lr": "the schedule's peak; required for a schedule where weight decay, a cooldown or an age follows it, and"
    " under optax.inject_hyperparams, where schedules arrive as numbers",
    "decay_mask": f"{_CHOICE} decay",
    "matrices": f"{_CHOICE} are matrices, or stacks [..., rows, columns] of them; none = by paths and shapes",
    "weight_decay": "strength of the decay",
}
"""Help of settings that `danalab.optim.settings.HELP` does not have or does not fit."""


def _takes(
    settings: Callable[P, S],
) -> Callable[[Callable[[S], optax.GradientTransformation]], Callable[P, optax.GradientTransformation]]:
    """A function of settings takes what their class declares, and has its signature."""
    signature = inspect.signature(settings).replace(return_annotation=optax.GradientTransformation)

    def decorate(build: Callable[[S], optax.GradientTransformation]) -> Callable[P, optax.GradientTransformation]:
        @functools.wraps(build)
        def member(*args: P.args, **kwargs: P.kwargs) -> optax.GradientTransformation:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            return build(SimpleNamespace(**{**_ABSENT, **plain_settings(given.arguments)}))  # pyright: ignore[reportArgumentType]

        member.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        member.__doc__ = f"{inspect.getdoc(build)}\n\n{described(signature.parameters, _TEXTS)}"
        return member

    return decorate


@_takes(_Settings)
def adana(settings: _Settings) -> optax.GradientTransformation:
    """ADana: theta <- theta - lr (g + gamma3 (1 + (1+t)^(1-kappa)) m) / (sqrt(v) + eps), moments in logarithmic time.

    Under `optax.inject_hyperparams`, `age` and `buffers` are `static_args`.

    Raises:
        UserError: a setting out of range; a schedule with weight decay or a cooldown and no peak_lr; parameters (when
            the state is made) that are no real floating-point numbers.
    """
    return _transformation(settings, with_tau=False)


@_takes(_ClippedSettings)
def dana_mk4(settings: _ClippedSettings) -> optax.GradientTransformation:
    """ADana whose damped momentum (1+t)^(1-kappa) |m| / (sqrt(v) + eps) is clipped at `clipsnr`; else as `adana`."""
    return _transformation(settings, with_tau=False)


@_takes(_Settings)
def dana_star(settings: _Settings) -> optax.GradientTransformation:
    """ADana on each coordinate's own clock: tau estimates how often it has a gradient; the rest as in `adana`."""
    return _transformation(settings, with_tau=True)


@_takes(_ClippedSettings)
def dana_star_mk4(settings: _ClippedSettings) -> optax.GradientTransformation:
    """`dana_star` with the clipping of `dana_mk4`; the rest as in `adana`."""
    return _transformation(settings, with_tau=True)


@_takes(_MuonSettings)
def dana_muon(settings: _MuonSettings) -> optax.GradientTransformation:
    """DanaMuon: orthogonalised matrices with momentum in logarithmic time, `dana_star_mk4` for all other parameters.

        a = delta / (delta + t)          B <- B + a (g - B)          X = g + t^(1-kappa) B
        p <- (1 - lr weight_decay) p - lr matched_rms sqrt(max(rows, columns)) O(X)

    Here weight decay is multiplied by the learning rate, lr weight_decay / (1 + t / wd_ts) for other parameters.

    Under `optax.inject_hyperparams`, `ns_steps`, `ns_method`, `age` and `buffers` are `static_args`.

    Raises:
        UserError: as `adana`.
    """
    s: Any = settings
    lr = s.peak_lr if callable(s.learning_rate) else s.learning_rate
    if s.omega is not None and lr is None:
        raise UserError("a learning-rate schedule with omega needs peak_lr: weight decay is omega / (peak_lr horizon)")
    if _are_numbers(lr, s.weight_decay, s.omega, s.horizon):
        given = {name: getattr(s, name) for name in (*OMEGA, "weight_decay", "wd_ts")}
        s = SimpleNamespace(**{**vars(s), **dict.fromkeys(OMEGA), **with_coupled_decay("optax", lr or 0.0, given)})
    factor = 1.0 if s.aux_lr_factor is None else s.aux_lr_factor
    if _are_numbers(factor) and not 0 <= factor < math.inf:
        raise UserError(f"aux_lr_factor is {factor}; it must be finite and not negative")
    if lr is not None and _are_numbers(lr, factor, s.weight_decay) and lr * max(1, factor) * s.weight_decay >= 1:
        raise UserError(f"weight decay takes {lr * max(1, factor) * s.weight_decay:g} of a parameter in one step")
    chain, rms = coefficients(s.ns_method, s.ns_steps), s.matched_rms
    of_matrix = functools.partial(muon_step, kappa=s.kappa, rms=rms, chain=chain, fresh=s.fresh)
    return _transformation(s, with_tau=True, of_matrix=of_matrix)


def _matrix_shapes(params: Any, chosen: Any, tree: Any) -> list[tuple[int, ...] | None]:
    """For each parameter its shape as a matrix or a stack of matrices, None for the others.

    `chosen`: as `matrices` of `dana_muon`; None: by the kinds of names and shapes. More than three dimensions are those
    of a convolution: [*kernel, in, out] if it is called kernel, as in flax, else [out, in, *kernel], as in torch.
    """
    if chosen is not None:
        pairs = zip(jax.tree.leaves(params), _of_leaves(chosen, params, tree), strict=True)
        return [jnp.shape(p) if is_matrix else None for p, is_matrix in pairs]
    named = _named_shapes(params)
    shapes: list[tuple[int, ...] | None] = []
    for kind, (name, shape) in zip(kinds_by_names(named), named, strict=True):
        if kind == "matrix" and len(shape) > 2:
            shape = (-1, shape[-1]) if name.endswith("kernel") else (shape[0], -1)
        shapes.append(shape if kind in ("matrix", "experts") else None)
    return shapes


def _named_shapes(params: Any) -> list[tuple[str, tuple[int, ...]]]:
    """(path, shape) of each parameter."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), jnp.shape(p)) for path, p in leaves]


def _rate_factors(s: Any, params: Any) -> list[Any]:
    """For each parameter that is not a matrix its learning rate in units of the matrices'."""
    kinds = kinds_by_names(_named_shapes(params))
    if s.aux_lr_factor is not None:
        return [s.aux_lr_factor] * len(kinds)
    return [DANA_MUON_FACTORS.get(kind, DANA_MUON_FACTORS[""]) for kind in kinds]


class _Decay(NamedTuple):
    """lambda(t) = weight_decay / (1 + t / wd_ts), at most `bound` times the peak learning rate."""

    weight_decay: Any
    wd_ts: Any
    bound: Any

    @classmethod
    def of(cls, s: _Settings) -> "_Decay":
        """From either form."""
        weight_decay, wd_ts, bound = s.weight_decay, s.wd_ts, s.decay_bound
        if _are_numbers(weight_decay, wd_ts, s.omega, s.horizon):
            weight_decay, wd_ts = resolve_decay(
                "optax", weight_decay=weight_decay, wd_ts=wd_ts, omega=s.omega, horizon=s.horizon
            )
        elif s.omega is not None:  # traced
            weight_decay, wd_ts = omega_decay("optax", s.omega, wd_ts, s.horizon)
        if bound is None and s.omega is not None:
            bound = LOG_TIME_DECAY_BOUND
        bound = None if _are_numbers(bound) and not bound else bound
        if bound is None and _are_numbers(weight_decay, wd_ts):
            check_first_decay("optax", weight_decay, wd_ts)
        return cls(weight_decay, wd_ts, bound)

    def rate(self, t: Any, peak_lr: Any) -> Any:
        """lambda(t), before the schedule factor; see `danalab.optim.rules.scalars.decay_rate`."""
        rate = self.weight_decay if self.wd_ts is None else self.weight_decay / (1 + t / self.wd_ts)
        return rate if self.bound is None else jnp.minimum(rate, jnp.minimum(self.bound * peak_lr, 0.5))


_OF_THE_RULE = ("delta", "kappa", "eps", "gamma3", "clipsnr", "alpha_offset", "beta2", "fresh")
"""Settings that `dana_step` takes."""


def _transformation(
    s: Any, *, with_tau: bool, of_matrix: Callable[..., Any] | None = None
) -> optax.GradientTransformation:
    """`of_matrix`: the rule of matrices; then decay comes before the step and is multiplied by the learning rate."""
    _check(s)
    coupled = of_matrix is not None
    decay = _Decay(s.weight_decay, s.wd_ts, None) if coupled else _Decay.of(s)
    learning_rate, peak_lr = s.learning_rate, s.peak_lr
    decays = not (_are_numbers(decay.weight_decay) and decay.weight_decay == 0)
    cools = not (_are_numbers(s.momentum_cooldown) and s.momentum_cooldown == 0)
    follows = decays and (s.scaled_decay or not coupled)
    buffers = 1 if s.buffers is None else s.buffers
    check_numbers("optax", {"age": s.age, "buffers": buffers, "buffer_ages": s.buffer_ages})
    memory = None if s.age is None else age_path("optax", s.age)
    if memory and cools:
        raise UserError("age and momentum_cooldown both set the momentum's memory; give one of them")
    if callable(learning_rate) and (follows or cools or memory) and peak_lr is None:
        what = "weight decay" if follows else "momentum_cooldown" if cools else "age"
        raise UserError(f"a learning-rate schedule with {what} needs peak_lr: both follow lr / peak_lr")
    of_rule = {name: getattr(s, name) for name in _OF_THE_RULE}
    of_rule["clipsnr"] = jnp.inf if of_rule["clipsnr"] is None else of_rule["clipsnr"]
    of_others = functools.partial(dana_step, **of_rule)

    def matrix_shapes(params: Any, tree: Any) -> list[tuple[int, ...] | None]:
        return _matrix_shapes(params, s.matrices, tree) if coupled else [None] * tree.num_leaves

    def init(params: optax.Params) -> DanaState:
        for path, p in jax.tree_util.tree_leaves_with_path(params):
            if not jnp.issubdtype(jnp.asarray(p).dtype, jnp.floating):
                name = jax.tree_util.keystr(path) or "the parameter"
                raise UserError(f"{name} is {jnp.asarray(p).dtype}: only real floating-point numbers can be optimized")
        leaves, tree = jax.tree.flatten(params)
        moments = [zero_moments(p.shape, _compute_type(p), with_tau) for p in map(jnp.asarray, leaves)]
        for i, shape in enumerate(matrix_shapes(params, tree)):
            if shape is not None:  # has a first moment only
                moments[i] = zero_moments((), moments[i].m.dtype, with_tau)._replace(m=moments[i].m)
        counts = tree.unflatten([jnp.zeros((), jnp.int32) for _ in leaves])
        if buffers > 1:
            moments = [x._replace(m=jnp.stack([x.m] * buffers)) for x in moments]
        m, v = (tree.unflatten([getattr(x, name) for x in moments]) for name in ("m", "v"))
        tau = tree.unflatten([x.tau for x in moments]) if with_tau else None
        ages = tree.unflatten([jnp.zeros((), _compute_type(jnp.asarray(p))) for p in leaves]) if memory else None
        return DanaState(jnp.zeros((), jnp.int32), counts, m, v, tau, ages)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **_: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise UserError("the Dana family needs the parameters: optimizer.update(grads, state, params)")
        assert isinstance(state, DanaState)
        base: Any = learning_rate(state.calls) if callable(learning_rate) else learning_rate
        factor = 1.0 if peak_lr is None else jnp.minimum(base / peak_lr, 1.0)
        peak = base if peak_lr is None else peak_lr
        leaves, tree = jax.tree.flatten(params)
        grads = jax.tree.leaves(updates, is_leaf=lambda leaf: leaf is None)
        if len(grads) != len(leaves):
            raise UserError(f"{len(grads)} gradients for {len(leaves)} parameters: the two trees differ")
        columns = [tree.flatten_up_to(x) for x in (state.steps, state.m, state.v)]
        taus = tree.flatten_up_to(state.tau) if with_tau else [None] * len(leaves)
        ages = tree.flatten_up_to(state.age) if memory else [0.0] * len(leaves)
        masks = [True] * len(leaves) if s.decay_mask is None else _of_leaves(s.decay_mask, params, tree)
        rows, shapes = [], matrix_shapes(params, tree)
        factors = _rate_factors(s, params) if coupled else [1.0] * len(leaves)
        for p, g, steps, m, v, tau, age, masked, shape, of_kind in zip(
            leaves, grads, *columns, taus, ages, masks, shapes, factors, strict=True
        ):
            if g is None:
                rows.append((jnp.zeros_like(p), steps, m, v, tau, age))
                continue
            wide = _compute_type(p)
            t = steps + 1
            clock = t.astype(wide)
            g, averages = jnp.asarray(g, wide), m
            if memory:
                before, age = age, memory.step(clock, factor, age)
                gain = 1 - age / (1 + before)
                if buffers > 1:
                    gains, weights = mixture(vars(s), clock, age)
                    averages = jnp.stack([x + own * (g - x) for x, own in zip(m, gains, strict=True)])
                    m, gain = jnp.tensordot(jnp.stack(weights), averages, 1), 0.0
            else:
                gain = s.delta / (s.delta + clock * (factor**s.momentum_cooldown if cools else 1.0))
            if of_matrix and shape is not None:
                lr, own = base, Moments(m.reshape(shape), v, tau)
                direction, new = of_matrix(g.reshape(shape), own, clock, gain=gain)
                direction, new = direction.reshape(p.shape), new._replace(m=new.m.reshape(p.shape))
            else:
                lr = of_kind * base
                direction, new = of_others(g, Moments(m, v, tau), clock, gain=gain)
            old = jnp.asarray(p, wide)
            moved = old - lr * direction
            if decays and masked:
                rate = decay.rate(clock, peak) if shape is None else decay.weight_decay
                keep = 1 - (lr if coupled else factor) * rate * (factor if s.scaled_decay else 1.0)
                if s.cautious_decay:
                    moved = jnp.where(jnp.sign(direction) * old > 0, keep * old, old) - lr * direction
                else:
                    moved = keep * old - lr * direction if coupled else moved * keep
            first = averages if buffers > 1 else new.m
            rows.append(((moved - jnp.asarray(p, wide)).astype(p.dtype), t, first, new.v, new.tau, age))
        columns = zip(*rows, strict=True) if rows else [()] * 6  # an optimizer of masked parameters may have none
        change, steps, m, v, tau, ages = (tree.unflatten(list(column)) for column in columns)
        own = tau if with_tau else None, ages if memory else None
        return change, DanaState(state.calls + 1, steps, m, v, *own)

    return optax.GradientTransformationExtraArgs(init, update)


def _of_leaves(choice: Any, params: Any, tree: Any) -> list[Any]:
    """The truth value for each parameter, of a tree of them or of a function of the parameters."""
    return tree.flatten_up_to(choice(params) if callable(choice) else choice)


def _compute_type(p: Any) -> Any:
    # float32 at least: in bfloat16 the averages freeze once their gain delta / (delta + t) is below its resolution.
    return jnp.promote_types(p.dtype, jnp.float32)


def _are_numbers(*settings: Any) -> bool:
    """Whether none is traced, as optax.inject_hyperparams does."""
    return all(isinstance(value, int | float | None) for value in settings)


def _check(settings: Any) -> None:
    """Ranges of the settings that are plain numbers; traced ones (optax.inject_hyperparams) pass."""
    for name, value in vars(settings).items():
        accept, words = RANGES.get(name.replace("learning_rate", "lr"), (None, ""))
        if accept is None:
            continue
        if isinstance(value, str):
            raise UserError(f"{name} is {value!r}; it must be a number")
        if isinstance(value, int | float) and not (math.isfinite(value) and accept(float(value))):
            raise UserError(f"{name} is {value}; it must be finite and {words}")
        if isinstance(value, int | float) and value == 0 and name in ("peak_lr", "clipsnr"):
            raise UserError(f"{name} is 0; it must be positive, or None")

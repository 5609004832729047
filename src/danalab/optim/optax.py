"""The Dana family and DanaMuon as optax gradient transformations, the same numbers as the PyTorch classes.

    optimizer = adana(1e-3, weight_decay=0.04, wd_ts=1000, decay_mask=lambda params: ...)
    state = optimizer.init(params)
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)

The equations are those of dana.py and muon.py; t = 1, 2, ... counts the updates of each parameter. Settings
are theirs, too, and may be traced, as by optax.inject_hyperparams: changing them recompiles nothing. Source:
arXiv 2602.05298.
"""

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

from danalab.errors import MissingExtra, UserError

try:
    import jax
    import jax.core
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise MissingExtra("optax", "danalab.optim.optax") from error

from .base import RANGES, omega_and_horizon
from .dana import LogTimeOptimizer
from .groups import DECAYED, ORTHOGONALISED, kind_by_name, with_tied
from .muon import NORMUON_BETA, reduced

ScalarOrSchedule = float | jax.Array | Callable[[Any], Any]
"""A learning rate, or a function of the 0-based number of the step."""


# ---- the update of one array ----


class Moments(NamedTuple):
    """State of one array; `tau` is None for the members without it."""

    m: jax.Array
    v: jax.Array
    tau: jax.Array | None


def zero_moments(shape: tuple[int, ...], dtype: Any, with_tau: bool) -> Moments:
    """The state before the first step."""
    zero = jnp.zeros(shape, dtype)
    return Moments(zero, zero, zero if with_tau else None)


def dana_step(
    g: jax.Array,
    state: Moments,
    t: Any,
    *,
    delta: Any,
    kappa: Any,
    eps: Any = 1e-8,
    gamma3: Any = 1.0,
    alpha_offset: Any = 1.0,
    clipsnr: Any = jnp.inf,
) -> tuple[jax.Array, Moments]:
    """The update before the learning rate, and the new state. Infinite clip: none."""
    gain = delta / (delta + t)
    m = (1 - gain) * state.m + gain * g
    v = (1 - gain) * state.v + gain * g**2
    r = jnp.sqrt(v) + eps
    if state.tau is None:
        u = jnp.abs(m) / r
        damped = jnp.minimum((1 + t) ** (1 - kappa) * u, clipsnr)
        return g / r + gamma3 * jnp.sign(m) * (damped + alpha_offset * u), Moments(m, v, None)
    tau = (1 - gain) * state.tau + gain * jnp.abs(g) / (jnp.abs(g) + r)
    q = activity(tau, t)
    n = jnp.sqrt(q) / r
    u = jnp.abs(m) * n
    damped = jnp.minimum(jnp.maximum(tau * t, 1) ** (1 - kappa) * u / q, clipsnr)
    return n * g + gamma3 * jnp.sign(m) * (q * damped + alpha_offset * u), Moments(m, v, tau)


def activity(tau: jax.Array, t: Any) -> jax.Array:
    """q, the estimate of how often a coordinate gets a gradient; never below once in 1 + t steps."""
    c = jnp.minimum(tau, 0.5)
    return jnp.maximum(c / (1 - c), 1 / (1 + t))


def muon_step(
    g: jax.Array, m: jax.Array, v: jax.Array, t: Any, *, delta: Any, kappa: Any, matched_rms: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """matched_rms sqrt(max(rows, columns)) N(O(g + t^(1-kappa) m)) of matrices, N normuon; the new m and v."""
    gain = delta / (delta + t)
    m = (1 - gain) * m + gain * g
    o = orthogonalize(g + t ** (1 - kappa) * m)
    v = v + (1 - NORMUON_BETA) * (jnp.mean(o**2, axis=reduced(o.shape), keepdims=True) - v)
    scaled = o / (jnp.sqrt(v) + 1e-10)
    norms = [jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in (o, scaled)]
    return matched_rms * max(g.shape[-2:]) ** 0.5 * scaled * (norms[0] / jnp.maximum(norms[1], 1e-30)), m, v


def orthogonalize(x: jax.Array) -> jax.Array:
    """Approximately U V^T of each matrix U S V^T, by five steps of Newton-Schulz."""
    if x.shape[-2] > x.shape[-1]:
        return orthogonalize(x.mT).mT
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


# ---- transformations ----


class DanaState(NamedTuple):
    """State of a transformation."""

    calls: jax.Array
    """Calls of `update` so far, the argument of a learning-rate schedule."""
    steps: Any
    """Updates applied to each parameter: one behind `calls` for every call in which its gradient was None."""
    m: Any
    """First moment, float32 (float64 for float64 parameters)."""
    v: Any
    """Second moment; for a matrix of `dana_muon` of its rows or columns, and tau is not used."""
    tau: Any
    """Activity estimate of the star members; None for the others."""


def adana(
    learning_rate: ScalarOrSchedule,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    eps: float = 1e-8,
    gamma3: float = 1.0,
    alpha_offset: float = 1.0,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    peak_lr: float | None = None,
    decay_mask: Any = None,
) -> optax.GradientTransformation:
    """`danalab.optim.ADana`.

    Args:
        learning_rate: a number, or a schedule of the 0-based step.
        peak_lr: the schedule's peak; required for a schedule with weight decay, which follows lr / peak_lr,
            and under optax.inject_hyperparams, where schedules arrive as numbers.
        decay_mask: tree of booleans, or a function of the parameters that gives one: which parameters decay.
    Raises:
        UserError: a setting out of range, or parameters (when the state is made) that are no real numbers.
    """
    rule = {"delta": delta, "kappa": kappa, "eps": eps, "gamma3": gamma3, "alpha_offset": alpha_offset}
    decay = {"weight_decay": weight_decay, "wd_ts": wd_ts, "omega": omega, "horizon": horizon}
    return _member(learning_rate, rule, decay, peak_lr, decay_mask, with_tau=False)


def dana_mk4(
    learning_rate: ScalarOrSchedule,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    eps: float = 1e-8,
    clipsnr: float | None = 2.0,
    gamma3: float = 1.0,
    alpha_offset: float = 1.0,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    peak_lr: float | None = None,
    decay_mask: Any = None,
) -> optax.GradientTransformation:
    """`danalab.optim.DanaMK4`; arguments as of `adana`, and `clipsnr`, the largest damped momentum."""
    rule = {"delta": delta, "kappa": kappa, "eps": eps, "gamma3": gamma3, "alpha_offset": alpha_offset}
    decay = {"weight_decay": weight_decay, "wd_ts": wd_ts, "omega": omega, "horizon": horizon}
    return _member(learning_rate, {**rule, "clipsnr": clipsnr}, decay, peak_lr, decay_mask, with_tau=False)


def dana_star(
    learning_rate: ScalarOrSchedule,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    eps: float = 1e-8,
    gamma3: float = 1.0,
    alpha_offset: float = 1.0,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    peak_lr: float | None = None,
    decay_mask: Any = None,
) -> optax.GradientTransformation:
    """`danalab.optim.DanaStar`; arguments as of `adana`."""
    rule = {"delta": delta, "kappa": kappa, "eps": eps, "gamma3": gamma3, "alpha_offset": alpha_offset}
    decay = {"weight_decay": weight_decay, "wd_ts": wd_ts, "omega": omega, "horizon": horizon}
    return _member(learning_rate, rule, decay, peak_lr, decay_mask, with_tau=True)


def dana_star_mk4(
    learning_rate: ScalarOrSchedule,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    eps: float = 1e-8,
    clipsnr: float | None = 2.0,
    gamma3: float = 1.0,
    alpha_offset: float = 1.0,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    peak_lr: float | None = None,
    decay_mask: Any = None,
) -> optax.GradientTransformation:
    """`danalab.optim.DanaStarMK4`; arguments as of `adana`, and `clipsnr`, the largest damped momentum."""
    rule = {"delta": delta, "kappa": kappa, "eps": eps, "gamma3": gamma3, "alpha_offset": alpha_offset}
    decay = {"weight_decay": weight_decay, "wd_ts": wd_ts, "omega": omega, "horizon": horizon}
    return _member(learning_rate, {**rule, "clipsnr": clipsnr}, decay, peak_lr, decay_mask, with_tau=True)


def dana_muon(
    learning_rate: ScalarOrSchedule,
    *,
    delta: float = 8.0,
    kappa: float = 0.85,
    eps: float = 1e-8,
    clipsnr: float | None = 2.0,
    matched_rms: float = 0.2,
    aux_lr_factor: float | None = None,
    weight_decay: float = 0.0,
    wd_ts: float | None = None,
    omega: float | None = None,
    horizon: float | None = None,
    peak_lr: float | None = None,
    matrices: Any = None,
) -> optax.GradientTransformation:
    """`danalab.optim.DanaMuon`: orthogonalised matrices, `dana_star_mk4` for all other parameters.

    As of the class, matrices and heads decay, embeddings and vectors do not; the decay is multiplied by the
    learning rate, and omega gives omega / (lr horizon).

    Args:
        learning_rate: a number, or a schedule of the 0-based step.
        aux_lr_factor: learning rate of parameters that are not matrices, in units of lr; None: 1 for
            embeddings, 0.0625 for vectors and 0.25 for heads, and embeddings of models without a head.
        peak_lr: the schedule's peak; required for a schedule with omega.
        matrices: tree of booleans, or a function of the parameters that gives one: which parameters are
            matrices, or stacks [..., rows, columns] of them. None: by paths and shapes.
    """
    _check_omega(omega, horizon, weight_decay)
    if omega is not None:
        rate: Any = learning_rate if peak_lr is None and isinstance(learning_rate, Real) else peak_lr
        if rate is None or horizon is None:
            raise UserError(
                "omega needs horizon, and with a schedule, also in inject_hyperparams, the peak_lr"
            )
        decay: Any = omega / (rate * horizon)
        weight_decay = min(decay, 1.0) if isinstance(decay, Real) else jnp.minimum(decay, 1.0)  # pyright: ignore
        wd_ts = horizon
    rule = {"delta": delta, "kappa": kappa, "eps": eps, "clipsnr": clipsnr}
    others = {
        "matched_rms": matched_rms,
        "aux_lr_factor": aux_lr_factor,
        "weight_decay": weight_decay,
        "wd_ts": wd_ts,
        "learning_rate": learning_rate,
    }
    _check({**rule, **others})

    def step(p: Any, g: Any, state: Moments, t: Any, lr: Any, kind: str, shape: Any) -> tuple[Any, Moments]:
        decays = weight_decay if kind in DECAYED else 0.0
        if shape is not None:
            matrix = {"delta": delta, "kappa": kappa, "matched_rms": matched_rms}
            direction, m, v = muon_step(g.reshape(shape), state.m.reshape(shape), state.v, t, **matrix)
            moved = p * (1 - lr * decays) - lr * direction.reshape(p.shape)
            return moved, state._replace(m=m.reshape(p.shape), v=v)
        usual = {"embedding": 1.0, "vector": 0.0625}.get(kind, 0.25)
        own = lr * (usual if aux_lr_factor is None else aux_lr_factor)
        direction, state = dana_step(g, state, t, **_clip(rule))
        falling = decays if wd_ts is None else decays / (1 + t / wd_ts)
        return p * (1 - own * falling) - own * direction, state

    return _transformation(
        learning_rate, step, with_tau=True, matrices="kinds" if matrices is None else matrices
    )


def _member(
    learning_rate: ScalarOrSchedule,
    rule: dict[str, Any],
    decay: dict[str, Any],
    peak_lr: float | None,
    decay_mask: Any,
    *,
    with_tau: bool,
) -> optax.GradientTransformation:
    """A member of the Dana family: its rule, then independent weight decay."""
    _check({**rule, **decay, "learning_rate": learning_rate, "peak_lr": peak_lr})
    weight_decay, wd_ts, omega, horizon = decay.values()
    bound: Any = None
    _check_omega(omega, horizon, weight_decay)
    if omega is not None:
        if wd_ts is None:
            if horizon is None:
                raise UserError("omega needs horizon, the length of the run in steps, or wd_ts")
            wd_ts = horizon / 10
        weight_decay, bound = omega / wd_ts, LogTimeOptimizer.decay_bound
    decays = not isinstance(weight_decay, Real) or weight_decay != 0
    known = decays and (
        omega is not None or (not isinstance(weight_decay, jax.core.Tracer) and weight_decay != 0)
    )
    if known and peak_lr is None and not isinstance(learning_rate, Real):
        raise UserError(
            "a learning-rate schedule, also in inject_hyperparams, with weight decay needs peak_lr: the decay "
            "follows lr / peak_lr"
        )

    def step(
        p: Any, g: Any, state: Moments, t: Any, lr: Any, masked: bool, shape: Any
    ) -> tuple[Any, Moments]:
        direction, state = dana_step(g, state, t, **_clip(rule))
        moved = p - lr * direction
        if not (decays and masked):
            return moved, state
        peak = lr if peak_lr is None else peak_lr
        rate: Any = weight_decay if wd_ts is None else weight_decay / (1 + t / wd_ts)
        if bound is not None:
            rate = jnp.minimum(rate, jnp.minimum(bound * peak, 0.5))
        share = 1.0 if peak_lr is None else jnp.minimum(lr / peak_lr, 1.0)
        return moved * (1 - share * rate), state

    return _transformation(learning_rate, step, with_tau=with_tau, mask=decay_mask)


def _clip(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "clipsnr": jnp.inf if rule.get("clipsnr") is None else rule["clipsnr"]}


def _transformation(
    learning_rate: Any,
    step: Callable[..., tuple[Any, Moments]],
    *,
    with_tau: bool,
    mask: Any = None,
    matrices: Any = None,
) -> optax.GradientTransformation:
    """`step(p, g, moments, t, lr, kind or mask, shape as a matrix)` on all with a gradient."""

    def facts(params: Any, tree: Any) -> list[tuple[Any, Any]]:
        """(kind or mask, shape as a matrix or None) of each parameter."""
        if matrices is None:
            return [(masked, None) for masked in _choice(mask, params, tree)]
        named = [
            (jax.tree_util.keystr(path, simple=True, separator="."), jnp.shape(p))
            for path, p in jax.tree_util.tree_leaves_with_path(params)
        ]
        kinds = with_tied(kind_by_name(name, shape) for name, shape in named)
        if matrices == "kinds":
            chosen = [kind in ORTHOGONALISED for kind in kinds]
            return [
                (kind, matrix_shape(*own, kind) if is_matrix else None)
                for kind, own, is_matrix in zip(kinds, named, chosen, strict=True)
            ]
        chosen = _choice(matrices, params, tree)
        return [
            ("matrix" if is_matrix else kind, own[1] if is_matrix else None)
            for kind, own, is_matrix in zip(kinds, named, chosen, strict=True)
        ]

    def init(params: optax.Params) -> DanaState:
        for path, p in jax.tree_util.tree_leaves_with_path(params):
            if not jnp.issubdtype(jnp.asarray(p).dtype, jnp.floating):
                name = jax.tree_util.keystr(path) or "the parameter"
                raise UserError(
                    f"{name} is {jnp.asarray(p).dtype}: only real floating-point numbers can be optimized"
                )
        leaves, tree = jax.tree.flatten(params)
        moments = []
        for p, (_, shape) in zip(map(jnp.asarray, leaves), facts(params, tree), strict=True):
            own = zero_moments(p.shape, _wide(p), with_tau)
            if shape is not None:
                matrix = own.m.reshape(shape)
                own = own._replace(v=matrix.sum(reduced(matrix.shape), keepdims=True), tau=own.m.sum())
            moments.append(own)
        m, v = (tree.unflatten([getattr(own, name) for own in moments]) for name in ("m", "v"))
        tau = tree.unflatten([own.tau for own in moments]) if with_tau else None
        counts = tree.unflatten([jnp.zeros((), jnp.int32) for _ in leaves])
        return DanaState(jnp.zeros((), jnp.int32), counts, m, v, tau)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **_: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise UserError("the Dana family needs the parameters: optimizer.update(grads, state, params)")
        assert isinstance(state, DanaState)
        lr: Any = learning_rate(state.calls) if callable(learning_rate) else learning_rate
        leaves, tree = jax.tree.flatten(params)
        grads = jax.tree.leaves(updates, is_leaf=lambda leaf: leaf is None)
        if len(grads) != len(leaves):
            raise UserError(f"{len(grads)} gradients for {len(leaves)} parameters: the two trees differ")
        steps, m, v = (tree.flatten_up_to(x) for x in (state.steps, state.m, state.v))
        tau: list[Any] = tree.flatten_up_to(state.tau) if with_tau else [None] * len(leaves)
        changes = []
        for i, ((kind, shape), g) in enumerate(zip(facts(params, tree), grads, strict=True)):
            p = jnp.asarray(leaves[i])
            if g is None:
                changes.append(jnp.zeros_like(p))
                continue
            steps[i] = steps[i] + 1
            wide, t = p.astype(_wide(p)), steps[i].astype(_wide(p))
            new, own = step(wide, jnp.asarray(g, _wide(p)), Moments(m[i], v[i], tau[i]), t, lr, kind, shape)
            m[i], v[i], tau[i] = own
            changes.append((new - wide).astype(p.dtype))
        new_state = DanaState(
            state.calls + 1,
            tree.unflatten(steps),
            tree.unflatten(m),
            tree.unflatten(v),
            tree.unflatten(tau) if with_tau else None,
        )
        return tree.unflatten(changes), new_state

    return optax.GradientTransformationExtraArgs(init, update)


def matrix_shape(path: str, shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """A matrix or a stack of them as it is; a convolution as a matrix: [*kernel, in, out] of flax, which is
    called kernel, or [out, in, *kernel] of torch."""
    if len(shape) == 2 or kind == "experts":
        return shape
    return (-1, shape[-1]) if path.endswith("kernel") else (shape[0], -1)


def _choice(choice: Any, params: Any, tree: Any) -> list[Any]:
    """The truth value of each parameter: of a tree of them, or a function that gives a tree; None: all true."""
    if choice is None:
        return [True] * tree.num_leaves
    if isinstance(choice, bool) and tree.num_nodes > 1:
        raise UserError(
            f"decay_mask or matrices is {choice}; it must be a tree of booleans or a function of the parameters, "
            "which optax.inject_hyperparams takes in static_args"
        )
    return tree.flatten_up_to(choice(params) if callable(choice) else choice)


def _wide(p: Any) -> Any:
    # float32 at least: in bfloat16 the averages freeze once their gain is below its resolution.
    return jnp.promote_types(p.dtype, jnp.float32)


def _check_omega(omega: Any, horizon: Any, weight_decay: Any) -> None:
    """omega and horizon belong together, without weight decay; a traced one passes."""
    decay = weight_decay if isinstance(weight_decay, Real) else 0.0
    try:
        omega_and_horizon("optax", {"omega": omega, "horizon": horizon, "weight_decay": decay})
    except ValueError as error:
        raise UserError(str(error)) from error


def _check(settings: dict[str, Any]) -> None:
    """Ranges of the settings that are plain numbers; traced ones and schedules pass."""
    if settings.get("horizon") is not None and settings.get("wd_ts") is not None:
        raise UserError("horizon and wd_ts both set the time scale of weight decay; give one of them")
    for name, value in settings.items():
        test, words = RANGES.get("lr" if name == "learning_rate" else name, (None, ""))
        if isinstance(value, str):
            raise UserError(f"{name} is {value!r}; it must be a number")
        if (
            test is not None
            and isinstance(value, Real)
            and not (math.isfinite(float(value)) and test(float(value)))
        ):
            raise UserError(f"{name} is {value}; it must be {words}")
        if name in ("peak_lr", "clipsnr") and isinstance(value, Real) and float(value) == 0:
            raise UserError(f"{name} is 0; it must be above 0, or None")

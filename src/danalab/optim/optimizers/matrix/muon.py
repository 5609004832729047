"""Muon and D-Muon: orthogonalised momentum for matrices, AdamW for other parameters; DanaMuon, Manau: Dana-Star-MK4.

    X = direction(gradient, momentum)          p <- (1 - lr weight_decay) p - lr scale(rows, columns) O(X)

O needs whole matrices; `danalab.optim.optimizers.matrix.sharded` computes it for sharded ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.optimizers.base import RuleOptimizer
from danalab.optim.optimizers.matrix import newton_schulz
from danalab.optim.optimizers.matrix.base import ADAMW_COUPLED, TwoRules, coupled
from danalab.optim.rules.age import gain_of
from danalab.optim.rules.dana_star import DANA_STAR
from danalab.optim.rules.foreach import decay
from danalab.optim.rules.rule import Rule
from danalab.optim.rules.scalars import (
    cautious,
    coupled_decay_factor,
    decay_rate,
    effective_time_scalars,
    scaled_decay,
    shrink,
)
from danalab.optim.settings import (
    DANA_MUON_FACTORS,
    DanaMuonSettings,
    DMuonSettings,
    ManauSettings,
    MuonSettings,
    takes,
)
from danalab.optim.step.backends.choice import Backend
from danalab.optim.step.backends.plain import foreach
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state_dict import parameter_name
from danalab.optim.values import options_on


def muon_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars of Muon's step: as `matched_scalars`, but without Nesterov X is the gradient alone."""
    scalars = {**matched_scalars(group, t), "matched_rms": None}
    mixes = group["nesterov"] or group.get("fresh") is not None
    return scalars if mixes else {**scalars, "new": 1.0, "weight": 0.0}


def matched_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars of step t: B <- decay B + gain g, X = new g + weight B, then `lr`, `decay_factor` and what O needs."""
    if group.get("dana_momentum"):
        return log_time_muon_scalars(group, t)
    if group["nesterov"]:
        rates = {"decay": group["momentum"], "gain": 1.0, "new": 1.0, "weight": group["momentum"]}
    else:
        rates = {"decay": group["momentum"], "gain": 1.0, "new": 0.0, "weight": 1.0}
    return _with_rates(group, t, rates)


def log_time_muon_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars of step t with B in logarithmic time; else as those of D-Muon."""
    gain = group["delta"] / (group["delta"] + t)
    rates = {"decay": 1 - gain, "gain": gain, "new": 1.0, "weight": float(t) ** (1 - group["kappa"])}
    return _with_rates(group, t, rates)


def _with_rates(group: Mapping[str, Any], t: int, rates: dict[str, float]) -> dict[str, Any]:
    rates = rates if group.get("age") is None and group.get("fresh") is None else _remembering(group, t, rates)
    return {
        **rates,
        "lr": group["lr"],
        "decay_factor": coupled_decay_factor(group),
        "cautious": cautious(group),
        "matched_rms": group.get("matched_rms"),
        "normalise": group.get("normalise"),
        "row_beta": group.get("row_beta"),
        "heads": group.get("heads"),
        "hold_norm": group.get("hold_norm"),
        "uw_floor": group.get("uw_floor"),
        "method": group["ns_method"],
        "steps": group["ns_steps"],
        "dtype": None if group["ns_dtype"] is None else getattr(torch, group["ns_dtype"]),
    }


def _remembering(group: Mapping[str, Any], t: int, rates: dict[str, float]) -> dict[str, float]:
    """`rates` with the memory of `age`, which B is an average by, and the share `fresh` in X, up to a factor."""
    weights = rates["gain"] / (1 - rates["decay"])  # the sum of all weights in B
    if group.get("age") is not None:
        gain = gain_of(group, t)
        rates = {**rates, "decay": 1 - gain, "gain": gain, "weight": rates["weight"] * weights}
        weights = 1.0
    if group.get("fresh") is not None:
        share = max(group["fresh"], 1e-6)
        rates = {**rates, "new": 1.0, "weight": (1 - share) / share / weights}
    return rates


def update(p: Tensor, g: Tensor, buffer: Tensor, *row_moments: Tensor, **s: Any) -> tuple[Tensor, ...]:
    """One step of one matrix as a pure function, the reference of `update_all`; new (p, buffer) in the buffer's dtype.

    Parameter, gradient and momentum are [rows, ...]; more than two dimensions count as columns. s: see
    `matched_scalars`. With `normalise` normuon the second moments of the rows follow the momentum.
    """
    p, g = p.to(buffer.dtype), g.to(buffer.dtype)
    buffer = s["decay"] * buffer + s["gain"] * g
    o = _orthogonal(g, buffer, s)
    row_moments = tuple(v.lerp(_mean_squares(o).view_as(v), 1 - s["row_beta"]) for v in row_moments)
    direction = _sized(o, row_moments, s).reshape(g.shape)
    if s["hold_norm"]:
        return held(p, direction, p.norm(), s["lr"]), buffer, *row_moments
    if s["uw_floor"]:
        direction = raised(direction, direction.norm(), s["uw_floor"] * p.norm())
    decayed = s["decay_factor"] * p if s["cautious"] is None else shrink(p, direction, s["decay_factor"])
    return decayed - s["lr"] * direction, buffer, *row_moments


def momentum_direction(g: Tensor, buffer: Tensor, *row_moments: Tensor, **s: Any) -> Tensor:
    """The update direction of `update`, from the new state, without the options that depend on the parameter."""
    return _sized(_orthogonal(g, buffer, s), row_moments, s).reshape(g.shape)


def _orthogonal(g: Tensor, buffer: Tensor, s: Mapping[str, Any]) -> Tensor:
    """O(X) of each head, [heads, rows, columns]."""
    x = (s["new"] * g + s["weight"] * buffer).flatten(1).unflatten(0, (s["heads"] or 1, -1))
    return newton_schulz.orthogonalize(x, s["method"], s["steps"], s["dtype"]).to(buffer.dtype)


def _sized(o: Tensor, row_moments: tuple[Tensor, ...], s: Mapping[str, Any]) -> Tensor:
    for v in row_moments:
        o = o * newton_schulz.row_factors(_mean_squares(o), v.view(*o.shape[:2], 1))
    return scale(o.shape[1:], s["matched_rms"]) * newton_schulz.normalised(o, s["normalise"])


def _mean_squares(o: Tensor) -> Tensor:
    return o.square().mean(dim=-1, keepdim=True)


def raised(u: Tensor, norm: Tensor, least: Tensor) -> Tensor:
    """u, whose norm is given, with a norm of at least `least`; a zero update stays zero."""
    return u / norm.clamp_min(torch.finfo(u.dtype).tiny) * torch.maximum(norm, least)


def held(p: Tensor, u: Tensor, norm: Tensor, lr: float) -> Tensor:
    """p after a step of constant angle along u, with its norm: Hyperball's R N(p - lr R N(u))."""
    moved = p - lr * norm * (u / u.norm().clamp_min(torch.finfo(u.dtype).tiny))
    return norm * (moved / moved.norm().clamp_min(torch.finfo(u.dtype).tiny))


def scale(shape: Any, matched_rms: float | None) -> float:
    """Factor on the orthogonal matrix: by shape (Muon), or for the typical RMS of AdamW (D-Muon)."""
    return math.sqrt(max(1.0, shape[0] / shape[1])) if matched_rms is None else matched_rms * math.sqrt(max(shape))


def update_all(
    ps: list[Tensor],
    gs: list[Tensor],
    buffers: list[Tensor],
    row_moments: Sequence[Tensor] = (),
    *,
    like: Sequence[Tensor] | None = None,
    **s: Any,
) -> None:
    """`update` on lists, in place; matrices of equal shape in one batch. `like`: the parameters, if `ps` are shards."""
    like = ps if like is None else like
    torch._foreach_mul_(buffers, s["decay"])
    torch._foreach_add_(buffers, gs, alpha=s["gain"])
    chain = newton_schulz.coefficients(s["method"], s["steps"])
    form = newton_schulz.Form(chain, s["normalise"], s["heads"])
    dtypes = [s["dtype"] or newton_schulz.default_dtype(ps[0], p.shape) for p in like]

    def direction(i: int) -> Tensor:
        return mixed(gs[i], buffers[i], s).to(dtypes[i])

    def apply(i: int, o: Tensor) -> None:
        rows, columns = newton_schulz.matrix_shape(like[i].shape)
        shape = rows // (s["heads"] or 1), columns
        o = o.reshape(ps[i].shape).to(ps[i].dtype)
        if row_moments:
            scale_rows(o, row_moments[i], like[i], s)
        if s["hold_norm"]:
            hold(ps[i], o, like[i], s["lr"])
            return
        if s["uw_floor"]:
            least = s["uw_floor"] / scale(shape, s["matched_rms"]) * norm(ps[i], like[i])
            o = raised(o, norm(o, like[i]), least)
        move(ps[i], o, shape, s)

    whole: list[int] = []
    spread: dict[Any, list[int]] = {}
    for i, p in enumerate(like):
        mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", None)
        (whole if mesh is None else spread.setdefault((mesh, placements, dtypes[i]), [])).append(i)
    shapes = [newton_schulz.matrix_shape(ps[i].shape) for i in whole]
    for k, o in newton_schulz.orthogonalize_each(
        shapes, lambda k: direction(whole[k]).flatten(1), form, [dtypes[i] for i in whole], ps[0].device
    ):
        apply(whole[k], o)
    if spread:
        from danalab.optim.optimizers.matrix import sharded

        for indices in spread.values():
            parts = [direction(i) for i in indices]
            for k, o in sharded.orthogonalize_shards([like[i] for i in indices], parts, form):
                apply(indices[k], o)


def mixed(g: Tensor, buffer: Tensor, s: Mapping[str, Any]) -> Tensor:
    """X, from the new buffer."""
    return torch.add(g, buffer, alpha=s["weight"]) if s["new"] else buffer


def move(p: Tensor, o: Tensor, shape: tuple[int, int], s: Mapping[str, Any]) -> None:
    """Decay a parameter and apply O(X), in place; `shape`: rows and columns of the whole matrix."""
    rate = s["lr"] * scale(shape, s["matched_rms"])
    decay(p, s["decay_factor"], o if s["cautious"] else None)
    p.add_(o, alpha=-rate)


def hold(p: Tensor, o: Tensor, like: Tensor, lr: float) -> None:
    """`held` for a parameter, or for a part of a sharded one, in place."""
    before = norm(p, like)
    p.sub_(lr * before * (o / norm(o, like).clamp_min(torch.finfo(o.dtype).tiny)))
    p.mul_(before / norm(p, like).clamp_min(torch.finfo(o.dtype).tiny))


def norm(x: Tensor, like: Tensor) -> Tensor:
    """Frobenius norm of a matrix of which x is this rank's part; `like`: the parameter."""
    if getattr(like, "device_mesh", None) is None:
        return x.norm()
    from danalab.optim.optimizers.matrix import sharded

    return sharded.norm(like, x)


def scale_rows(o: Tensor, moments: Tensor, like: Tensor, s: Mapping[str, Any]) -> None:
    """NorMuon's second moments and its scale of the rows, of a matrix or of a part of a sharded one, in place."""
    v, own = (
        moments.flatten(1),
        o.flatten(1).square().sum(dim=1, keepdim=True) / newton_schulz.matrix_shape(like.shape)[1],
    )
    if getattr(like, "device_mesh", None) is None:
        v.lerp_(own, 1 - s["row_beta"])
        factors = _factors_by_head(own, v, s)
    else:
        from danalab.optim.optimizers.matrix import sharded

        squares = sharded.all_rows(like, own, are_parts=True)
        v.lerp_(sharded.own_rows(like, squares), 1 - s["row_beta"])
        factors = sharded.own_rows(like, _factors_by_head(squares, sharded.all_rows(like, v), s))
    o.flatten(1).mul_(factors)


def _factors_by_head(squares: Tensor, v: Tensor, s: Mapping[str, Any]) -> Tensor:
    heads = s["heads"] or 1
    return newton_schulz.row_factors(squares.unflatten(0, (heads, -1)), v.unflatten(0, (heads, -1))).flatten(0, 1)


def update_stacks(*lists: list[Tensor], like: Sequence[Tensor] | None = None, **s: Any) -> None:
    """`update_all` for stacks [matrices, rows, columns], each matrix separately.

    A stack that is sharded along its first dimension needs no communication.
    """
    of_each = None if like is None else [matrix for stack in like for matrix in _matrices_of(stack)]
    each = [[matrix for stack in stacks for matrix in stack.unbind(0)] for stacks in lists]
    if each[0]:
        update_all(*each, like=of_each, **s)


def _matrices_of(stack: Tensor) -> Sequence[Tensor]:
    """This rank's matrices of a stack, whole or sharded."""
    if getattr(stack, "device_mesh", None) is None:
        return stack.unbind(0)
    from danalab.optim.optimizers.matrix import sharded

    return sharded.matrices_of(stack)


def _rule(name: str, scalars: Callable[[Mapping[str, Any], Any], dict[str, Any]]) -> Rule:
    return Rule(
        name, ("momentum_buffer",), scalars, update, momentum_direction, gains=("gain",), aged=True, foreach=update_all
    )


@cache
def with_row_moments(rule: Rule, name: str) -> Rule:
    """The rule of matrices with the second moments of their rows, under this key of the state (`OF_ROWS`)."""
    return replace(rule, name=f"{rule.name}_{name}", moments=(*rule.moments, name))


MUON = _rule("muon", muon_scalars)
MATCHED_MUON = _rule("matched_muon", matched_scalars)
LOG_TIME_MUON = _rule("log_time_muon", log_time_muon_scalars)


class HybridOptimizer(TwoRules, RuleOptimizer):
    """Orthogonalised momentum for matrices, an element-wise rule for other parameters; decay is lr * weight_decay.

    See `Muon` for the arguments. The state of a matrix is `step` and `momentum_buffer`, float32.
    """

    matrix_rule: ClassVar[Rule]
    other_rule: ClassVar[Rule]

    def setup(self, params: Any, settings: dict[str, Any]) -> None:
        super().setup(params, {**self.of_matrices(settings), "capturable": False})

    def _check_added(self, group: dict[str, Any]) -> None:
        super()._check_added(group)
        self.check_heads(group)
        if group.get("hold_norm") and group.get("uw_floor"):
            raise UserError(f"{self.name}: hold_norm makes steps of one size, so uw_floor has no effect; leave it out")
        for index, p in enumerate(group["params"] if group["use_muon"] else ()):
            if group.get("hold_norm") and not p.is_meta and not bool(p.detach().any()):
                raise UserError(
                    f"{self.name}: {parameter_name(group, index)} is zero, and hold_norm keeps its norm; initialise it"
                    " with other values, or leave hold_norm out of its group"
                )

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        if not group["use_muon"]:
            return self.other_rule
        if group.get("normalise") != newton_schulz.NORMUON:
            return self.matrix_rule
        return with_row_moments(
            self.matrix_rule, "row_moment_of_stack" if group.get("kind") == "experts" else "row_moment"
        )

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """As in the base class, with the options that are on: numbers, 1 for a switch and for NAME_VALUE of a word."""
        on = options_on(self.param_groups[group]).items()
        told = {f"{name}_{value}" if isinstance(value, str) else name: value for name, value in on}
        return {**super().coefficients(group), **{n: 1 if isinstance(v, (bool, str)) else v for n, v in told.items()}}

    def check_backend(self, group: Mapping[str, Any]) -> None:
        if not group["use_muon"]:  # the flags choose how the rest is computed
            super().check_backend(group)

    def backend_of(self, rule: Rule, batch: TensorBatch) -> Backend:
        return self._update_matrices if batch.group["use_muon"] else super().backend_of(rule, batch)

    def _update_matrices(self, rule: Rule, batches: list[TensorBatch]) -> None:
        originals = [p for group in self.param_groups for p in group["params"]]
        for batch in batches:
            like = [originals[index] for index in batch.indices]
            step = update_stacks if batch.group.get("kind") == "experts" else update_all
            foreach(replace(rule, foreach=partial(step, like=like)), [batch])


class Muon(HybridOptimizer):
    """Orthogonalised momentum on matrices, AdamW on embeddings, heads and vectors.

        B <- momentum B + g          X = g + momentum B (nesterov), or g
        p <- (1 - lr weight_decay) p - lr sqrt(max(1, rows / columns)) O(X)

    O sets all singular values to nearly 1 (see the module newton_schulz), for all matrices of a shape at once.
    Convolutions count as matrices [out, in * kernel]. eps is added to the root of the second moment before it is
    corrected for its bias.

    A group sets `use_muon` (bool) or `kind` ("matrix", "experts": stacks of matrices, "router", "head", "embedding",
    "vector"). One without either is split by the kinds of names and shapes (`danalab.optim.optimizers.kinds`), with a
    warning where names are missing; a model's parameters are split by the types of its modules, too. `heads` in a
    group cuts the rows of its matrices into equal parts, which are matrices of their own: attention heads of queries,
    keys and values, also in one weight.

    Raises:
        UserError: a setting out of range, no parameters, or `use_muon` for a vector.
    Source: K. Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; `normalise`: Zhang et al.
    2026, arXiv 2602.21545 (Muon+), Li et al. 2025, arXiv 2510.05491 (NorMuon); `hold_norm`: Wen et al. 2026, arXiv
    2606.16899 (Hyperball); `uw_floor`: K. Krishna 2026, github.com/KellerJordan/modded-nanogpt/pull/274 (0.35 at lr
    0.0375).
    """

    matrix_rule = MUON
    other_rule = ADAMW_COUPLED

    @takes(MuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class DMuon(HybridOptimizer):
    """Muon with the update size of AdamW, so that one learning rate and one weight decay suit all parameters.

        B <- momentum B + g          X = g + momentum B (nesterov), or B
        p <- (1 - lr weight_decay) p - lr matched_rms sqrt(max(rows, columns)) O(X)

    Source: Liu et al. 2025, arXiv 2502.16982 ("Muon is scalable for LLM training").
    """

    matrix_rule = MATCHED_MUON
    other_rule = ADAMW_COUPLED

    @takes(DMuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


def _decay_factor(group: Mapping[str, Any], t: int) -> float:
    return 1 - group["lr"] * scaled_decay(group, decay_rate(group, t))


DANA_STAR_COUPLED = replace(DANA_STAR, scalars=coupled(effective_time_scalars, _decay_factor))


class DanaMuon(HybridOptimizer):
    """Orthogonalised matrices with momentum in logarithmic time; DanaStarMK4 for embeddings, heads and vectors.

        a = delta / (delta + t)          B <- B + a (g - B)          X = g + t^(1-kappa) B
        p <- (1 - lr weight_decay) p - lr matched_rms sqrt(max(rows, columns)) O(X)

    Other parameters are updated as by `DanaStarMK4`, but decay comes first and is multiplied by the learning rate:
    p <- p (1 - lr weight_decay / (1 + t / wd_ts)).

    Source: Manau of the original code with its `dana_momentum`; matrices after Liu et al. 2025, arXiv 2502.16982.
    """

    matrix_rule = LOG_TIME_MUON
    other_rule = DANA_STAR_COUPLED
    aux_factors = DANA_MUON_FACTORS

    @takes(DanaMuonSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...


class Manau(DanaMuon):
    """D-Muon on matrices; other parameters as by `DanaMuon`.

    Source: Muon after Liu et al. 2025, arXiv 2502.16982; the Dana family after arXiv 2602.05298.
    """

    matrix_rule = MATCHED_MUON

    @takes(ManauSettings)
    def __init__(self, params: Any, settings: dict[str, Any]): ...

"""Muon and its relatives: orthogonalised momentum for matrices, an element-wise rule for all others.

    X  = g + weight B, from the momentum B          p <- p (1 - lr weight_decay) - lr scale O(X)

| class    | momentum of matrices                            | scale                                  | the rest      |
|----------|-------------------------------------------------|----------------------------------------|---------------|
| Muon     | B <- momentum B + g,  weight = momentum          | sqrt(max(1, rows / columns))           | AdamW         |
| DMuon    | the same; without nesterov X = B                 | matched_rms sqrt(max(rows, columns))   | AdamW         |
| Manau    | as DMuon, or with dana_momentum as DanaMuon      | matched_rms sqrt(max(rows, columns))   | DanaStarMK4   |
| DanaMuon | B <- B + a (g - B),  weight = t^(1-kappa)        | matched_rms sqrt(max(rows, columns))   | DanaStarMK4   |

O is the orthogonalisation of newton_schulz.py, a = delta / (delta + t). The decay is multiplied by the
learning rate. A model becomes a group for each kind of parameters (groups.py); a group of another kind than
matrix and experts (stacks of matrices) has a learning rate of its own, `aux_lr_factor` times lr.

Source: K. Jordan et al. 2024 (Muon); Liu et al. 2025, arXiv 2502.16982 (D-Muon); arXiv 2602.05298 (the Dana
family). `normalise`: Zhang et al. 2026, arXiv 2602.21545, and Li et al. 2025, arXiv 2510.05491 (normuon).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .adamw import adam_scalars, adamw_update
from .base import (
    Group,
    Moving,
    Optimizer,
    Rule,
    State,
    coupled_decay,
    decay_rate,
    local_gradient,
    local_part,
    working_dtype,
)
from .dana import dana_star_scalars, dana_star_update
from .groups import KINDS, ORTHOGONALISED, kind_groups, split_group
from .newton_schulz import EPS, METHODS, Coefficients, coefficients, matrix_shape, orthogonalize_each

NORMALISATIONS = (None, "rows", "columns", "normuon")
NORMUON_BETA = 0.9


def momentum_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Of step t: B <- decay B + gain g, then X = new g + weight B."""
    if group.get("dana_momentum"):
        gain = group["delta"] / (group["delta"] + t)
        return {"decay": 1 - gain, "gain": gain, "new": True, "weight": float(t) ** (1 - group["kappa"])}
    momentum = group["momentum"]
    if group["nesterov"]:
        return {"decay": momentum, "gain": 1.0, "new": True, "weight": momentum}
    plain = group["matched_rms"] is None  # Muon without nesterov takes the gradient alone
    return {"decay": momentum, "gain": 1.0, "new": plain, "weight": float(not plain)}


def momentum_update(
    g: Tensor, buffer: Tensor, *, decay: float, gain: float, new: bool, weight: float
) -> tuple[Tensor, Tensor]:
    """The direction X and the new momentum B."""
    buffer = torch.add(decay * buffer, g, alpha=gain)
    return torch.add(g, buffer, alpha=weight) if new else weight * buffer, buffer


def matrix_update(
    p: Tensor, o: Tensor, *, lr: float, scale: float, decay_factor: float, cautious: bool = False
) -> Tensor:
    """p after the step; where `cautious` only coordinates decay that the step moves towards zero."""
    decayed = torch.where(o.sign() * p > 0, decay_factor * p, p) if cautious else decay_factor * p
    return torch.add(decayed, o, alpha=-lr * scale)


def normalised(o: Tensor, how: str | None) -> Tensor:
    """O [..., rows, columns] with rows or columns of equal norms; the norm of each matrix stays."""
    if how not in ("rows", "columns"):
        return o
    norm = o.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    o = o / o.square().sum(dim=-1 if how == "rows" else -2, keepdim=True).sqrt().clamp_min(EPS)
    return o * (norm / o.square().sum(dim=(-2, -1), keepdim=True).sqrt().clamp_min(EPS))


def normuon(o: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """O [..., rows, columns] divided by the roots of the new second moments, norm kept; and these.

    v has an entry for each row of a tall matrix, each column of a wide one: O's other side is even already.
    """
    dim = reduced(o.shape)
    squares = o.square().sum(dim=dim, keepdim=True) / o.shape[dim]
    v = v + (1 - NORMUON_BETA) * (squares - v)
    roots = v.sqrt() + 1e-10
    after = (squares / roots.square()).sum(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return o * ((squares.sum(dim=(-2, -1), keepdim=True) / after).sqrt() / roots), v


def reduced(shape: Sequence[int]) -> int:
    """The side along which second moments of normuon are one: the shorter, counted from the end."""
    return -1 if shape[-2] >= shape[-1] else -2


def scale_of(shape: Sequence[int], matched_rms: float | None) -> float:
    """Factor on O: by shape (Muon), or for the typical root mean square of AdamW's update."""
    rows, columns = matrix_shape(shape)
    if matched_rms is None:
        return math.sqrt(max(1.0, rows / max(columns, 1)))
    return matched_rms * math.sqrt(max(rows, columns))


# ---- the rules of other parameters, with decay before the step and multiplied by the learning rate ----


def coupled(group: Mapping[str, Any], t: int) -> dict[str, float]:
    """`lr` and `decay_factor` of a rule k (p - lr' u) that is p k - lr u: lr' = lr / k."""
    factor = 1 - float(group["lr"]) * decay_rate(group, t)
    if factor <= 0:
        raise ValueError(
            f"weight decay takes {1 - factor:g} of a parameter in a step (lr {float(group['lr']):g})"
        )
    return {"lr": float(group["lr"]) / factor, "decay_factor": factor}


def coupled_adam_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `adamw_update`; eps is added to the root before its bias is corrected."""
    scalars = adam_scalars(group, t)
    return {**scalars, **coupled(group, t), "eps": group["eps"] / scalars["correction2"] ** 0.5}


def star_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """The scalars of `dana_star_update`."""
    usual = {"gamma3": 1.0, "alpha_offset": 1.0, **group}
    return {**dana_star_scalars(usual, t), **coupled(group, t)}


ADAM = Rule(adamw_update, coupled_adam_scalars, ("exp_avg", "exp_avg_sq"), kernel="adamw")
DANA_STAR = Rule(dana_star_update, star_scalars, ("exp_avg", "exp_avg_sq", "tau"), kernel="dana_star")


# ---- the optimizers ----


class Hybrid(Optimizer):
    """A rule for matrices, another for the rest.

    Args:
        params: a model, parameters, named parameters or groups.
        lr: learning rate of matrices.
        momentum: rate of the momentum, a sum of gradients.
        nesterov: look ahead by one step of momentum.
        dana_momentum: momentum in logarithmic time for matrices, too.
        delta: the averages cover about the last 1/delta of the run.
        kappa: exponent of the damping t^(1-kappa); 1 is none.
        clipsnr: bound of the damped momentum of other parameters; none = no bound.
        matched_rms: root mean square of the update of a matrix, in units of lr.
        betas: AdamW's rates, of other parameters.
        eps: added to the root of the second moment.
        weight_decay: weight decay, times the learning rate.
        wd_ts: time scale on which that of other parameters falls [steps]; none = constant.
        omega: in place of weight_decay: omega / (lr horizon), at most 1.
        horizon: length of the run, with omega [steps]; where the decay falls it is wd_ts, too.
        aux_lr_factor: learning rate of other parameters, in units of lr; none = one for each kind.
        normalise: equal norms of rows or columns of O, or normuon = by second moments; none = neither.
        cautious_decay: decay only coordinates of matrices that the step moves towards zero.
        ns_method: newton-schulz or polar-express.
        fused: other parameters by C++ on a CPU, torch.compile on a GPU; none = where they can be had.
    """

    other_rule: ClassVar[Rule] = ADAM
    aux_factors: ClassVar[Mapping[str, float]] = {}
    """Kind -> its learning rate in units of the matrices', where aux_lr_factor is None; "": all others."""
    falls: ClassVar[bool] = False
    """With omega the decay of other parameters falls, with the horizon as its time scale."""

    def __init__(self, params: Any, **settings: Any):
        decay = coupled_decay(type(self).__name__, settings)
        horizon = settings.pop("horizon")
        if decay is not None:
            settings |= {"weight_decay": decay, "wd_ts": float(horizon) if self.falls else None}
        del settings["omega"]
        super().__init__(params, **{"wd_ts": None, "matched_rms": None, **settings})

    def groups_of(self, model: nn.Module) -> list[Group]:
        """A group for each kind of parameters."""
        return kind_groups(model)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters; a group without `kind` is split by names and shapes."""
        for part in split_group(param_group):
            if part["kind"] not in ORTHOGONALISED and "lr" not in param_group:
                factor = self._settings["aux_lr_factor"]
                if factor is None:
                    factor = self.aux_factors.get(part["kind"], self.aux_factors[""])
                part["lr"] = factor * float(self._settings["lr"])
            super().add_param_group(part)

    def check(self, group: Mapping[str, Any]) -> None:
        """As in the base class; and what matrices need."""
        super().check(group)
        for key, known in (("kind", KINDS), ("normalise", NORMALISATIONS), ("ns_method", tuple(METHODS))):
            if key in group and group[key] not in known:
                raise ValueError(f"{type(self).__name__}: {key} is {group[key]!r}; it must be one of {known}")
        least = {"matrix": 2, "experts": 3}.get(group["kind"], 0)
        if any(p.ndim < least for p in group["params"]):
            raise ValueError(f"{type(self).__name__}: a {group['kind']} has fewer than {least} dimensions")

    def rule_of(self, group: Mapping[str, Any]) -> Rule | None:
        return None if group["kind"] in ORTHOGONALISED else self.other_rule

    def new_state(self, group: Mapping[str, Any], p: Tensor) -> State:
        if self.rule_of(group) is not None:
            return super().new_state(group, p)
        state = {"momentum_buffer": torch.zeros_like(p, dtype=working_dtype(p), requires_grad=False)}
        if group.get("normalise") == "normuon":
            state["second_moment"] = moment_zeros(p if group["kind"] == "experts" else p.flatten(1))
        return state

    def update(self) -> None:
        groups = self.param_groups
        self.step_matrices([group for group in groups if group["kind"] in ORTHOGONALISED])
        self.apply(self.other_rule, [group for group in groups if group["kind"] not in ORTHOGONALISED])

    def step_matrices(self, groups: Sequence[Group]) -> None:
        """One step of matrices and stacks of them; all of one shape are orthogonalised in one batch."""
        chains: dict[tuple[str, int], list[tuple[Moving, Tensor]]] = {}
        for moving in self.moving(groups, local=False):
            group, p, g, state = moving
            buffer = state["momentum_buffer"]
            if buffer.device != p.device:
                buffer = state["momentum_buffer"] = buffer.to(p.device)
            # Tensor parallelism may leave a sum.
            if getattr(g, "placements", None) != getattr(p, "placements", None):
                g = g.redistribute(placements=p.placements)  # pyright: ignore[reportAttributeAccessIssue]
            scalars = momentum_scalars(group, int(state["step"]))
            x, new = momentum_update(g.to(buffer.dtype), buffer, **scalars)
            buffer.copy_(new)
            chain = group.get("ns_method", "newton-schulz"), group.get("ns_steps", 5)
            chains.setdefault(chain, []).append((moving, x if group["kind"] == "experts" else x.flatten(1)))
        for chain, entries in chains.items():
            os = orthogonalized([x for _, x in entries], coefficients(*chain))
            for ((group, p, _, state), _), o in zip(entries, os, strict=True):
                self._apply(group, p, state, o.to(working_dtype(p)))

    def _apply(self, group: Group, p: Tensor, state: State, o: Tensor) -> None:
        o = normalised(o, group.get("normalise"))
        if "second_moment" in state:
            o, new = normuon(o, state["second_moment"])
            state["second_moment"].copy_(new)
        own, lr = local_part(p), float(group["lr"])
        new = matrix_update(
            own.to(o.dtype),
            local_gradient(o, p).reshape(own.shape),
            lr=lr,
            scale=scale_of(p.shape[1:] if group["kind"] == "experts" else p.shape, group["matched_rms"]),
            decay_factor=1 - lr * group["weight_decay"],
            cautious=bool(group.get("cautious_decay")),
        )
        own.copy_(new)


def orthogonalized(xs: Sequence[Any], chain: Sequence[Coefficients]) -> list[Any]:
    """O of matrices and of each matrix in stacks; DTensors give DTensors of the same placements."""
    out: list[Any] = [*xs]
    whole = [i for i, x in enumerate(xs) if not hasattr(x, "to_local")]
    matrices = [m for i in whole for m in (xs[i] if xs[i].ndim > 2 else xs[i][None])]
    each = iter(orthogonalize_each(matrices, chain))
    for i in whole:
        out[i] = torch.stack([next(each) for _ in xs[i]]) if xs[i].ndim > 2 else next(each)
    if len(whole) < len(xs):
        from .gathered import orthogonalize_sharded

        spread = [i for i in range(len(xs)) if i not in whole]
        for i, o in zip(spread, orthogonalize_sharded([xs[i] for i in spread], chain), strict=True):
            out[i] = o
    return out


def moment_zeros(p: Any) -> Any:
    """The first second moments of normuon for p [..., rows, columns]."""
    if hasattr(p, "to_local"):
        from .gathered import zeros_along

        return zeros_along(p, reduced(p.shape), working_dtype(p))
    return torch.zeros_like(p.sum(dim=reduced(p.shape), keepdim=True), dtype=working_dtype(p))


class Muon(Hybrid):
    """Orthogonalised momentum on matrices, AdamW on embeddings, heads and vectors; arguments as in `Hybrid`.

    Convolutions count as matrices [out, in * kernel]. A group may have a `kind` (groups.py), or `use_muon`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        omega: float | None = None,
        horizon: float | None = None,
        aux_lr_factor: float = 0.15,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        normalise: str | None = None,
        cautious_decay: bool = False,
        ns_method: str = "newton-schulz",
        fused: bool | None = None,
    ):
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            omega=omega,
            horizon=horizon,
            aux_lr_factor=aux_lr_factor,
            betas=betas,
            eps=eps,
            normalise=normalise,
            cautious_decay=cautious_decay,
            ns_method=ns_method,
            fused=fused,
        )


class DMuon(Hybrid):
    """Muon with AdamW's size of update: one rate and weight decay suit all. Arguments as in `Hybrid`."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.016,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        matched_rms: float = 0.2,
        weight_decay: float = 0.0,
        omega: float | None = None,
        horizon: float | None = None,
        aux_lr_factor: float = 1.0,
        betas: tuple[float, float] = (0.8, 0.999),
        eps: float = 1e-8,
        normalise: str | None = None,
        cautious_decay: bool = False,
        fused: bool | None = None,
    ):
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            matched_rms=matched_rms,
            weight_decay=weight_decay,
            omega=omega,
            horizon=horizon,
            aux_lr_factor=aux_lr_factor,
            betas=betas,
            eps=eps,
            normalise=normalise,
            cautious_decay=cautious_decay,
            fused=fused,
        )


class DanaMuon(Hybrid):
    """Orthogonalised matrices with momentum in logarithmic time and normuon; DanaStarMK4 for all others.

    Decay of the latter falls, too: p <- p (1 - lr weight_decay / (1 + t / wd_ts)). Arguments as in `Hybrid`;
    without aux_lr_factor the learning rate is lr for embeddings, 0.0625 lr for vectors and 0.25 lr for heads.
    """

    other_rule = DANA_STAR
    # A step of the Dana family is several times as long as its rate; gradients of vectors rarely agree.
    aux_factors: ClassVar[Mapping[str, float]] = {"embedding": 1.0, "vector": 0.0625, "": 0.25}
    falls = True

    def __init__(
        self,
        params: Any,
        lr: float = 0.064,
        *,
        delta: float = 8.0,
        kappa: float = 0.85,
        clipsnr: float | None = 2.0,
        eps: float = 1e-8,
        matched_rms: float = 0.2,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
        aux_lr_factor: float | None = None,
        normalise: str | None = "normuon",
        cautious_decay: bool = False,
    ):
        super().__init__(
            params,
            lr=lr,
            delta=delta,
            kappa=kappa,
            clipsnr=clipsnr,
            eps=eps,
            matched_rms=matched_rms,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            aux_lr_factor=aux_lr_factor,
            normalise=normalise,
            cautious_decay=cautious_decay,
            dana_momentum=True,
        )


class Manau(Hybrid):
    """DMuon on matrices, DanaStarMK4 on other parameters; arguments as in `Hybrid`."""

    other_rule = DANA_STAR
    falls = True

    def __init__(
        self,
        params: Any,
        lr: float = 0.016,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        dana_momentum: bool = False,
        delta: float = 8.0,
        kappa: float = 0.85,
        clipsnr: float | None = 2.0,
        eps: float = 1e-8,
        matched_rms: float = 0.2,
        weight_decay: float = 0.0,
        wd_ts: float | None = None,
        omega: float | None = None,
        horizon: float | None = None,
    ):
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            dana_momentum=dana_momentum,
            delta=delta,
            kappa=kappa,
            clipsnr=clipsnr,
            eps=eps,
            matched_rms=matched_rms,
            weight_decay=weight_decay,
            wd_ts=wd_ts,
            omega=omega,
            horizon=horizon,
            aux_lr_factor=1.0,
        )

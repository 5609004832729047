"""Optimizers with two rules: one for matrices, another for other parameters (embeddings, heads, norms, biases).

A group sets `use_muon` or `kind`; a group without either is split in two by names and shapes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.optim.optimizers import checks
from danalab.optim.optimizers.groups import (
    as_given,
    named_groups,
    optimizable,
    refuse_flat_shards,
    refuse_torch_zero,
    split_by_rate,
    warn_of_guesses,
)
from danalab.optim.optimizers.kinds import DECAYED, declared, kinds_by_names, parameter_kinds, undecayed
from danalab.optim.optimizers.matrix.newton_schulz import (
    NORMALISATIONS,
    NORMUON,
    coefficients,
    normalised,
    orthogonalize,
    row_factors,
)
from danalab.optim.optimizers.stats import describe
from danalab.optim.rules.adamw_decaying_wd import ADAMW_DECAYING_WD
from danalab.optim.rules.scalars import adam_scalars, coupled_decay_factor, shrink
from danalab.optim.settings import KINDS
from danalab.optim.step.state import loss_of, moment_dtype
from danalab.optim.step.state_dict import parameter_name
from danalab.optim.values import read_kinds, refuse_options

ORTHOGONALISED = ("matrix", "experts")
"""Kinds whose momentum is orthogonalised; each matrix of stacked experts separately."""

AUXILIARY = ("aux_lr", "aux_lr_factor", "aux_weight_decay")
"""Settings of other parameters: they become `lr` and `weight_decay` of their groups."""

NS_DTYPES = ("float32", "float64", "bfloat16")


State = dict[str, Any]


class TwoRules(torch.optim.Optimizer):
    """Groups of matrices and of other parameters, which have a learning rate and a weight decay of their own.

    `params` as for `danalab.optim.Muon`; `settings` have those of `Auxiliary` among them.
    """

    aux_factors: ClassVar[Mapping[str, float]] = {}
    """Kind ("": the other ones) -> its learning rate in units of the matrices', where `aux_lr_factor` is None."""
    _auxiliary: dict[str, Any]
    _omega: float | None = None
    by_kinds = _warned_equal = False

    @property
    def name(self) -> str:
        return type(self).__name__

    describe = describe

    def of_matrices(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings without those of other parameters, which are kept for their groups; omega as a weight decay."""
        self._omega = settings["omega"]
        settings = checks.with_coupled_decay(self.name, settings["lr"], settings)
        of_groups = (*AUXILIARY, "by_kind")
        rest = {"wd_ts": None, **{name: value for name, value in settings.items() if name not in of_groups}}
        self._auxiliary = {name: settings[name] for name in AUXILIARY}
        if settings["aux_lr_factor"] is None:
            self._auxiliary["aux_lr_factor"] = self.aux_factors if settings["aux_lr"] is None else 1.0
        kinds = read_kinds(self.name, settings["by_kind"], rest)
        for own in kinds.values():
            checks.check_numbers(self.name, {"lr": own.get("lr_factor", 1.0)})
        self._auxiliary["by_kind"] = kinds
        return {**rest, "ns_dtype": dtype_name(self.name, rest["ns_dtype"])} if "ns_dtype" in rest else rest

    def __getstate__(self) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "_auxiliary": self._auxiliary}

    @staticmethod
    def split_group(owner: str, group: Any) -> list[dict[str, Any]]:
        """See the function."""
        return split_group(owner, group)

    def groups_of(self, params: Any, settings: Mapping[str, Any]) -> Any:
        """A model as groups by the kinds of its parameters; others as they are."""
        refuse_torch_zero(self.name)
        if isinstance(params, nn.Module):
            self.by_kinds = True
            groups = split_by_rate(model_groups(params, bool(settings.get("per_head"))), params)
        else:
            params = params if isinstance(params, Tensor) else list(params)
            groups = named_groups(self.name, params) if len(params) else []
            if settings.get("per_head") and not any("heads" in group for group in groups):
                raise UserError(f"{self.name}: per_head needs a model; in groups the key heads says it")
            warn_of_guesses(self.name, groups)
        refuse_flat_shards(self.name, (p for group in groups for _, p in group["params"]))
        return [{**group, "params": as_given(group["params"])} for group in groups]

    def prepare_groups(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group that says neither `use_muon` nor `kind` becomes two groups, matrices and the rest."""
        checks.refuse_two_decays(self.name, group, self._omega)
        refuse_options(self.name, group, self.defaults)
        return with_auxiliary(self.name, group, self._auxiliary, self.defaults["lr"])

    def check_groups(self) -> None:
        """As of `RuleOptimizer`."""
        checks.check_own_groups(self, self.check_group, "peak_lr", "use_muon")

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Refuse settings that make no sense; those of matrices that a group lacks are not looked at."""
        if "use_muon" in group:
            check_use_muon(self.name, group["use_muon"], [("", p) for p in group["params"]])
        if "kind" in group:
            check_kind(self.name, group["kind"])
        checks.check_numbers(self.name, group, declared=getattr(type(self).__init__, "declared", {}))
        momentum = checks.number_of(self.name, "momentum", group.get("momentum", 0.0))
        if momentum is not None and not 0 <= momentum < 1:
            raise UserError(f"{self.name}: momentum is {group['momentum']}; it must be in [0, 1)")
        if "ns_method" in group:
            coefficients(group["ns_method"], group["ns_steps"])
            dtype_name(self.name, group["ns_dtype"])
        if group.get("normalise") not in (None, *NORMALISATIONS):
            how = ", ".join(NORMALISATIONS)
            raise UserError(f"{self.name}: normalise is {group['normalise']!r}; it must be one of {how}, or None")
        checks.check_coupled_decay(self.name, group)

    def check_heads(self, group: Mapping[str, Any]) -> None:
        """Refuse heads that do not divide the rows of the group's matrices."""
        heads = group.get("heads")
        if heads is not None and (type(heads) is not int or heads < 1):
            raise UserError(f"{self.name}: heads is {heads!r}; it must be a whole number of equal parts of the rows")
        for index, p in enumerate(group["params"] if group["use_muon"] else ()):
            rows = p.shape[-2] if group.get("kind") == "experts" else len(p)
            if rows % (heads or 1):
                called = f"{self.name}: {parameter_name(group, index)}"
                raise UserError(f"{called} has {rows} rows; it must be a multiple of heads, {heads}")


class MatrixOptimizer(TwoRules):
    """A rule for whole matrices, and AdamW for other parameters, one tensor after another; decay is lr * weight_decay.

    State is made in the first step and has any shape. Built by name, these classes are wrapped in a `DTensorAdapter`,
    which checks the input and steps on sharded parameters. A stack of experts is many matrices, a convolution one
    matrix [out, in * kernel]; the last two dimensions are always rows and columns.
    """

    def setup(self, params: Any, settings: dict[str, Any]) -> None:
        """What the constructors do with their arguments."""
        rest = self.of_matrices(settings)
        torch.optim.Optimizer.__init__(self, self.groups_of(params, rest), rest)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; a group that says neither `use_muon` nor `kind` becomes two, matrices and the rest."""
        for part in self.prepare_groups(param_group):
            checks.check_parameters(self.name, named_groups(self.name, [part]))
            super().add_param_group(part)
            group = self.param_groups[-1]
            group.setdefault("peak_lr", float(group["lr"]))
            group.setdefault("initial_lr", group["peak_lr"])
            self.check_group(group)
            self.check_heads(group)

    def update_matrix(self, x: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """The new matrices, from matrices and gradients, [rows, columns] or stacks of them, in the dtype of the state.

        The state is of these matrices, with `step` = 1, 2, ...; changed in place.
        """
        raise NotImplementedError

    def update_other(self, p: Tensor, g: Tensor, state: State, group: Mapping[str, Any]) -> Tensor:
        """The new value of a parameter that is no matrix: AdamW's."""
        m, v = (moment(state, name, p) for name in ("exp_avg", "exp_avg_sq"))
        new, *moments = ADAMW_COUPLED.update(p, g, m, v, **ADAMW_COUPLED.scalars(group, int(state["step"])))
        m.copy_(moments[0])
        v.copy_(moments[1])
        return new

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply the gradients; a parameter without one stays unchanged. Returns the closure's result, or None."""
        self.check_groups()
        loss = loss_of(closure)
        self._warned_equal = self._warned_equal or checks.warn_of_equal_rates(self.name, self.param_groups)
        for group in self.param_groups:
            checks.check_gradients(self.name, group["params"])
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    self._update(p, -p.grad if group["maximize"] else p.grad, group)
        return loss

    def _update(self, p: Tensor, g: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
        state["step"] += 1
        dtype = moment_dtype(p)
        wide, g = p.to(dtype), g.to(dtype)
        if group["use_muon"]:
            shape = p.shape if p.ndim == 2 or group.get("kind") == "experts" else (len(p), p[0].numel())
            new = self.update_matrix(wide.view(shape), g.reshape(shape), state, group)
        else:
            new = self.update_other(wide, g, state, group)
        p.copy_(new.view(p.shape))


def moment(state: State, name: str, like: Tensor) -> Tensor:
    """A tensor of the state, made on first use in the shape of `like`, all zero."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


def decayed(x: Tensor, direction: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The matrices after weight decay, before a step along -direction."""
    factor = coupled_decay_factor(group)
    return shrink(x, direction, factor) if group.get("cautious_decay") else factor * x


def orthogonalised(x: Tensor, group: Mapping[str, Any], state: State | None = None) -> Tensor:
    """O(x) of each head, in the dtype of x, normalised; `state` is that of the matrices, for `normalise` normuon."""
    dtype, how = None if group["ns_dtype"] is None else getattr(torch, group["ns_dtype"]), group.get("normalise")
    by_head = x.unflatten(-2, (group.get("heads") or 1, -1))
    o = orthogonalize(by_head, group["ns_method"], group["ns_steps"], dtype).to(x.dtype)
    if state is not None and how == NORMUON:
        squares = o.square().mean(dim=-1, keepdim=True)
        v = moment(state, "row_moment", squares).lerp_(squares, 1 - group["row_beta"])
        o = o * row_factors(squares, v)
    return normalised(o, how).flatten(-3, -2)


def model_groups(model: nn.Module, per_head: bool = False) -> list[dict[str, Any]]:
    """A group for each kind, with named parameters, `kind` and `use_muon`; embeddings and vectors without decay.

    Parameters that the model declares to be without decay are in groups of their own; with `per_head` those, too, that
    it declares to consist of attention heads, in a method `attention_heads()`: name of the parameter -> their number.
    """
    heads = declared(model, "attention_heads") if per_head else {}
    if per_head and not heads:
        raise UserError(f"per_head: {type(model).__name__} has no method attention_heads(); give groups with heads")
    kinds, plain = parameter_kinds(model), undecayed(model)
    of_kind: dict[tuple[str, bool], list[tuple[str, Tensor]]] = {
        (kind, decays): [] for kind in (*DECAYED, "embedding", "vector") for decays in (True, False)
    }
    for name, parameter in optimizable(model):
        # Only tensors with rows and columns can be orthogonalised, whatever kind the model declares.
        kind = "vector" if parameter.ndim < 2 else kinds[name]
        of_kind[kind, kind in DECAYED and name not in plain].append((name, parameter))
    groups: list[dict[str, Any]] = []
    for (kind, decays), named in of_kind.items():
        for count in dict.fromkeys(heads.get(name) for name, _ in named):
            own = [(name, p) for name, p in named if heads.get(name) == count]
            group: dict[str, Any] = {"params": own, "kind": kind, "use_muon": kind in ORTHOGONALISED}
            group |= {} if count is None else {"heads": count}
            groups.append(group if decays else {**group, "weight_decay": 0.0})
    return groups


def split_group(owner: str, group: Any) -> list[dict[str, Any]]:
    """One or two groups with `use_muon`, made of a group; with `was_split` if the group set neither it nor `kind`."""
    if not isinstance(group, dict):
        raise UserError(f"{owner}: a parameter group is a {type(group).__name__}; it must be a dict with 'params'")
    group = {**group}
    params = group.get("params", [])
    entries = [params] if isinstance(params, Tensor) else list(params)
    group["params"] = entries
    if "use_muon" not in group and "kind" in group:
        check_kind(owner, group["kind"])
        group["use_muon"] = group["kind"] in ORTHOGONALISED
    if "use_muon" in group:
        check_use_muon(owner, group["use_muon"], map(_named, entries))
        return [group]
    parts: dict[str, list[Any]] = {"matrix": [], "experts": [], "": []}
    kinds = kinds_by_names([(name, p.shape) for name, p in map(_named, entries)])
    for entry, kind in zip(entries, kinds, strict=True):
        parts[kind if kind in ORTHOGONALISED else ""].append(entry)
    split = [
        {**group, "params": part, "use_muon": bool(kind), **({"kind": kind} if kind == "experts" else {})}
        for kind, part in parts.items()
        if part
    ]
    return [{**part, "was_split": True} for part in split or [{**group, "use_muon": False}]]


def check_kind(owner: str, kind: Any) -> None:
    """Refuse a kind of parameters that there is not."""
    if kind not in KINDS:
        raise UserError(f"{owner}: unknown kind '{kind}'{nearest(str(kind), KINDS)}; known: {', '.join(KINDS)}")


def check_use_muon(owner: str, use_muon: Any, named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse what is no bool, and True for vectors."""
    if not isinstance(use_muon, int) or use_muon not in (0, 1):
        raise UserError(f"{owner}: use_muon of a group is {use_muon!r}; it must be true or false")
    for index, (name, p) in enumerate(named):
        if use_muon and p.ndim < 2:
            called = f"parameter '{name}'" if name else f"parameter {index} of its group"
            raise UserError(f"{owner}: use_muon is set for {called}, which has {p.ndim} dimensions, not 2 or more")


def with_auxiliary(owner: str, group: Any, auxiliary: Mapping[str, Any], lr: Any) -> list[dict[str, Any]]:
    """The parts of a group by `split_group`; other parameters have the rate and decay of the `auxiliary` settings.

    A part becomes one group for each kind that has settings of its own. Those of `by_kind` win over the group's.
    """
    by_kind, factors = auxiliary.get("by_kind") or {}, auxiliary["aux_lr_factor"]
    own_kinds = {*by_kind, *(factors if isinstance(factors, Mapping) else ())}
    completed = []
    for part in split_group(owner, group):
        was_split = part.pop("was_split", False)
        if "ns_dtype" in part:
            part["ns_dtype"] = dtype_name(owner, part["ns_dtype"])
        of_matrices = lr if not was_split or part.get("lr") is None else part["lr"]
        checks.number_of(owner, "lr", of_matrices)
        for kind, piece in _pieces(part, own_kinds):
            if not piece["use_muon"]:
                # The settings of a split group are those of its matrices.
                rest = _auxiliary_settings(auxiliary, kind, of_matrices)
                piece = {**piece, **rest} if was_split else {**rest, **piece}
            own = {**by_kind.get(kind, {})}
            if (factor := own.pop("lr_factor", None)) is not None:
                own["lr"] = factor * float(of_matrices)
            completed.append({**piece, **own})
    return completed


def _pieces(part: dict[str, Any], own_kinds: Collection[str]) -> list[tuple[str, dict[str, Any]]]:
    """(kind, group) for each of these kinds in a group, and ("", group) with the others."""
    kind = part.get("kind") or ("matrix" if part["use_muon"] else None)
    if kind is not None or not own_kinds:
        return [(kind or "", part)]
    entries, members = part["params"], dict[str, list[Any]]()
    for entry, each in zip(entries, kinds_by_names([(name, p.shape) for name, p in map(_named, entries)]), strict=True):
        members.setdefault(each if each in own_kinds else "", []).append(entry)
    return [(each, {**part, "params": params, **({"kind": each} if each else {})}) for each, params in members.items()]


def _auxiliary_settings(auxiliary: Mapping[str, Any], kind: str, lr: Any) -> dict[str, Any]:
    """Default settings of a group of other parameters; `lr` is the rate of the matrices."""
    aux_lr, factor, weight_decay = (auxiliary[name] for name in AUXILIARY)
    if isinstance(factor, Mapping):
        factor = factor.get(kind, factor.get("", 1.0))
    if aux_lr is None and factor != 1:
        aux_lr = factor * float(lr)
    own = {"lr": aux_lr, "weight_decay": weight_decay}
    return {name: value for name, value in own.items() if value is not None}


def dtype_name(owner: str, dtype: Any) -> str | None:
    """`ns_dtype` as groups and checkpoints hold it: a name, or None for the default."""
    name = str(dtype).removeprefix("torch.") if dtype is not None else None
    if name is not None and name not in NS_DTYPES:
        raise UserError(f"{owner}: ns_dtype is {dtype!r}; it must be one of {', '.join(NS_DTYPES)}, or None")
    return name


def _named(entry: Any) -> tuple[str, Tensor]:
    return (str(entry[0]), entry[1]) if isinstance(entry, tuple) else ("", entry)


def coupled(scalars: Callable[..., dict[str, Any]], factor_of: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Scalars of an element-wise rule with decay before the update: p <- k p - lr u.

    The rules of this package compute p <- k (p - lr' u), which is the same with lr' = lr / k; cautious decay of either
    form is that of the parameter before the step.
    """

    def rescaled(group: Mapping[str, Any], t: Any) -> dict[str, Any]:
        factor = factor_of(group, t)
        if factor <= 0:
            raise UserError(f"weight decay takes {1 - factor:g} of a parameter in one step (lr {group['lr']:g})")
        coupled_scalars = {**scalars(group, t), "decay_factor": factor}
        lr = group["lr"] if group.get("fresh") is None else coupled_scalars["lr"]
        return coupled_scalars if coupled_scalars["cautious"] else {**coupled_scalars, "lr": lr / factor}

    return rescaled


def _adamw_scalars(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Scalars for (m / c1) / ((sqrt(v) + eps) / sqrt(c2)): eps is added before the correction of the root."""
    scalars = adam_scalars(group, t)
    return {**scalars, "eps": group["eps"] / scalars["correction2"] ** 0.5}


def _decay_factor(group: Mapping[str, Any], t: int) -> Any:
    return coupled_decay_factor(group)


ADAMW_COUPLED = replace(ADAMW_DECAYING_WD, scalars=coupled(_adamw_scalars, _decay_factor))

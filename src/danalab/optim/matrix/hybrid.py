"""Optimizers with two rules: one for matrices, another for other parameters (embeddings, heads, norms, biases).

A group sets `use_muon` or `kind`; a group without either is split in two by names and shapes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.optim.backends.choice import Backend
from danalab.optim.backends.foreach import foreach
from danalab.optim.core.batch import Batch
from danalab.optim.core.checks import check_coupled_decay, check_numbers, number_of
from danalab.optim.core.groups import DECAYED, KINDS, kind_by_name, parameter_kinds, split_by_rate, unwrapped
from danalab.optim.core.optimizer import RuleOptimizer
from danalab.optim.core.rule import Rule
from danalab.optim.matrix.newton_schulz import coefficients
from danalab.optim.matrix.step import update_all, update_stacks

ORTHOGONALISED = ("matrix", "experts")
"""Kinds whose momentum is orthogonalised; each matrix of stacked experts separately."""

VOCABULARY_ROWS = 10_000
"""A matrix with this many rows or more, in a group without a kind, is treated as an embedding or a head."""

AUXILIARY = ("aux_lr", "aux_lr_factor", "aux_weight_decay")
"""Settings of other parameters: they become `lr` and `weight_decay` of their groups."""

NS_DTYPES = ("float32", "float64", "bfloat16")


class HybridOptimizer(RuleOptimizer):
    """Orthogonalised momentum for matrices, an element-wise rule for other parameters; decay is lr * weight_decay.

    See `Muon` for the arguments. The state of a matrix is `step` and `momentum_buffer`, float32.
    """

    matrix_rule: ClassVar[Rule]
    other_rule: ClassVar[Rule]

    def __init__(self, params: Any, settings: dict[str, Any]):
        ns_dtype = dtype_name(self.name, settings["ns_dtype"])
        self._auxiliary = {name: settings[name] for name in AUXILIARY}
        rest = {name: value for name, value in settings.items() if name not in AUXILIARY}
        super().__init__(params, {**rest, "ns_dtype": ns_dtype, "capturable": False})

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().__getstate__(), "_auxiliary": self._auxiliary}

    @staticmethod
    def split_group(owner: str, group: Any) -> list[dict[str, Any]]:
        """See the function."""
        return split_group(owner, group)

    def groups_of(self, params: Any, settings: Mapping[str, Any]) -> Any:
        return split_by_rate(model_groups(params), params) if isinstance(params, nn.Module) else params

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        return self.matrix_rule if group["use_muon"] else self.other_rule

    def check_group(self, group: Mapping[str, Any]) -> None:
        check_settings(self.name, group)

    def prepare_groups(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group that says neither `use_muon` nor `kind` becomes two groups, matrices and the rest."""
        return with_auxiliary(self.name, group, self._auxiliary, self.defaults["lr"])

    def check_backend(self, group: Mapping[str, Any]) -> None:
        if not group["use_muon"]:  # the flags choose how the rest is computed
            super().check_backend(group)

    def backend_of(self, rule: Rule, batch: Batch) -> Backend:
        return self._update_matrices if rule is self.matrix_rule else super().backend_of(rule, batch)

    def _update_matrices(self, rule: Rule, batches: list[Batch]) -> None:
        originals = [p for group in self.param_groups for p in group["params"]]
        for batch in batches:
            like = [originals[index] for index in batch.indices]
            step = update_stacks if batch.group.get("kind") == "experts" else update_all
            foreach(replace(rule, foreach=partial(step, like=like)), [batch])


def check_settings(owner: str, group: Mapping[str, Any]) -> None:
    """Refuse settings that make no sense; those of matrices that a group lacks are not looked at."""
    check_numbers(owner, group)
    momentum = number_of(owner, "momentum", group.get("momentum", 0.0))
    if momentum is not None and not 0 <= momentum < 1:
        raise UserError(f"{owner}: momentum is {group['momentum']}; it must be in [0, 1)")
    if "ns_method" in group:
        coefficients(group["ns_method"], group["ns_steps"])
        dtype_name(owner, group["ns_dtype"])
    check_coupled_decay(owner, group)


def model_groups(model: nn.Module) -> list[dict[str, Any]]:
    """A group for each kind, with named parameters, `kind` and `use_muon`; embeddings and vectors without decay."""
    kinds = parameter_kinds(model)
    found: dict[str, list[tuple[str, Tensor]]] = {kind: [] for kind in (*DECAYED, "embedding", "vector")}
    for name, parameter in unwrapped(model).named_parameters():
        if parameter.requires_grad:
            # Only tensors with rows and columns can be orthogonalised, whatever kind the model declares.
            found["vector" if parameter.ndim < 2 else kinds[name]].append((name, parameter))
    groups: list[dict[str, Any]] = []
    for kind, named in found.items():
        if named:
            group: dict[str, Any] = {"params": named, "kind": kind, "use_muon": kind in ORTHOGONALISED}
            groups.append(group if kind in DECAYED else {**group, "weight_decay": 0.0})
    if not groups:
        raise UserError(f"{type(model).__name__}: no parameter requires gradients, there is nothing to optimize")
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
        kind = group["kind"]
        if kind not in KINDS:
            raise UserError(f"{owner}: unknown kind '{kind}'{nearest(str(kind), KINDS)}; known: {', '.join(KINDS)}")
        group["use_muon"] = kind in ORTHOGONALISED
    if "use_muon" in group:
        for index, (name, p) in enumerate(map(_named, entries)):
            if group["use_muon"] and p.ndim < 2:
                called = f"parameter '{name}'" if name else f"parameter {index} of its group"
                raise UserError(
                    f"{owner}: use_muon is set for {called}, which has {p.ndim} dimensions, needs 2 or more"
                )
        return [group]
    parts: dict[bool, list[Any]] = {True: [], False: []}
    for entry in entries:
        parts[_looks_like_matrix(*_named(entry))].append(entry)
    found = [{**group, "params": part, "use_muon": use_muon} for use_muon, part in parts.items() if part]
    return [{**part, "was_split": True} for part in found or [{**group, "use_muon": False}]]


def with_auxiliary(owner: str, group: Any, auxiliary: Mapping[str, Any], lr: Any) -> list[dict[str, Any]]:
    """The parts of a group by `split_group`; those of other parameters have their own learning rate and decay.

    Args:
        auxiliary: the settings `AUXILIARY`.
        lr: of groups that have none.
    """
    found = []
    for part in split_group(owner, group):
        was_split = part.pop("was_split", False)
        if "ns_dtype" in part:
            part["ns_dtype"] = dtype_name(owner, part["ns_dtype"])
        if not part["use_muon"]:
            # The settings of a split group are those of its matrices.
            own = part.get("lr") if was_split else None
            rest = _auxiliary_settings(auxiliary, lr if own is None else own)
            part = {**part, **rest} if was_split else {**rest, **part}
        found.append(part)
    return found


def _auxiliary_settings(auxiliary: Mapping[str, Any], lr: Any) -> dict[str, Any]:
    """Default settings of a group of other parameters; `lr` is the rate of the matrices."""
    aux_lr, factor, weight_decay = (auxiliary[name] for name in AUXILIARY)
    if aux_lr is None and factor != 1:
        aux_lr = factor * float(lr)
    found = {"lr": aux_lr, "weight_decay": weight_decay}
    return {name: value for name, value in found.items() if value is not None}


def dtype_name(owner: str, dtype: Any) -> str | None:
    """`ns_dtype` as groups and checkpoints hold it: a name, or None for the default."""
    name = str(dtype).removeprefix("torch.") if dtype is not None else None
    if name is not None and name not in NS_DTYPES:
        raise UserError(f"{owner}: ns_dtype is {dtype!r}; it must be one of {', '.join(NS_DTYPES)}, or None")
    return name


def _named(entry: Any) -> tuple[str, Tensor]:
    return (str(entry[0]), entry[1]) if isinstance(entry, tuple) else ("", entry)


def _looks_like_matrix(name: str, p: Tensor) -> bool:
    return kind_by_name(name, p.ndim) == "matrix" and p.shape[0] < VOCABULARY_ROWS


def coupled(scalars: Callable[..., dict[str, Any]], decay_factor: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Scalars of an element-wise rule with decay before the update: p <- k p - lr u.

    The rules of this package compute p <- k (p - lr' u), which is the same with lr' = lr / k; cautious decay of either
    form is that of the parameter before the step.
    """

    def rescaled(group: Mapping[str, Any], t: Any) -> dict[str, Any]:
        factor = decay_factor(group, t)
        if factor <= 0:
            raise UserError(
                f"weight decay takes {1 - factor:g} of a parameter in one step (lr {group['lr']:g}); lower it"
            )
        found = {**scalars(group, t), "decay_factor": factor}
        return found if found["cautious"] else {**found, "lr": group["lr"] / factor}

    return rescaled

"""Parameters as a caller passes them: a model, parameters, named ones or groups, as groups for an optimizer."""

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim.optimizers.kinds import (
    DECAYED,
    declared,
    is_flat_shard,
    kinds_by_names,
    parameter_kinds,
    undecayed,
    unwrapped,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

OWN_KEYS = ("params", "param_names")
"""Keys of a group that are not settings."""


def optimizable(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Named parameters, with the frozen ones: they may be unfrozen later, and are skipped as long as they have no
    gradient. Frozen ones of dtypes that cannot be optimized (quantized weights) are left out.

    UserError: no parameter requires gradients.
    """
    named = list(unwrapped(model).named_parameters())
    if not any(p.requires_grad for _, p in named):
        raise UserError(f"{type(model).__name__}: no parameter requires gradients, there is nothing to optimize")
    return [(name, p) for name, p in named if p.requires_grad or p.dtype in DTYPES]


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of named parameters: decayed, and with weight decay 0; no empty ones. See `optimizable`."""
    kinds, plain = parameter_kinds(model), undecayed(model)
    return groups_by_decay([(name, p, kinds[name] in DECAYED and name not in plain) for name, p in optimizable(model)])


def groups_by_decay(parameters: Iterable[tuple[str, Tensor, bool]]) -> list[dict[str, Any]]:
    """Groups of (name, parameter, whether it decays): decayed, and with weight decay 0."""
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, p, decays in parameters:
        groups[0 if decays else 1]["params"].append((name, p))
    return [{**group, "params": as_given(group["params"])} for group in groups if group["params"]]


def split_by_decay(owner: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    """Parameters, or named ones, as `groups_by_decay` by their names, shapes and marks (`_no_weight_decay`)."""
    [group] = named_groups(owner, [{"params": params}])
    refuse_flat_shards(owner, (p for _, p in group["params"]))
    kinds = kinds_by_names([(name, p.shape) for name, p in group["params"]])
    marked = [getattr(p, "_no_weight_decay", False) for _, p in group["params"]]
    return groups_by_decay(
        [(*pair, kind in DECAYED and not mark) for pair, kind, mark in zip(group["params"], kinds, marked, strict=True)]
    )


def split_added(owner: str, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A group that is added later, as `split_by_decay`; the decayed part is the last: trainers that unfreeze layers
    set the rate of the last group."""
    params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
    return [{**group, **part} for part in reversed(split_by_decay(owner, params))] or [{**group}]


def refuse_flat_shards(owner: str, params: Iterable[Tensor]) -> None:
    """Refuse parameters that FSDP1 keeps as parts of flat tensors: matrices have no rows in them."""
    if any(map(is_flat_shard, params)):
        raise UserError(
            f"{owner}: FSDP1 (use_orig_params) keeps matrices as flat shards without rows; use FSDP2 (fully_shard),"
            " or give the model to an element-wise optimizer such as ADana"
        )


def refuse_torch_zero(owner: str) -> None:
    """Refuse to be built in torch's ZeroRedundancyOptimizer: its ranks would make different groups of their shares."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = None if module is None else sys._getframe(1)
    while frame is not None and module is not None:
        if isinstance(frame.f_locals.get("self"), module.ZeroRedundancyOptimizer):
            raise UserError(
                f"{owner}: ZeroRedundancyOptimizer gives every rank other parameters, without their kinds; use"
                " DistributedMuonAdamW(model, optimizer=NAME)"
            )
        frame = frame.f_back


def warn_of_guesses(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Warn of matrices without names or kinds, for an optimizer that treats embeddings and heads differently."""
    unknown = [group for group in groups if not {"use_muon", "kind"} & set(group)]
    if any(not name and p.ndim > 1 for group in unknown for name, p in group["params"]):
        warnings.warn(
            f"{owner}: parameters have no names, so what is an embedding, a head or a matrix was guessed from their"
            " shapes; give the model, model.named_parameters(), or groups with a 'kind'",
            UserWarning,
            stacklevel=2,
        )


def split_by_rate(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Groups of named parameters, split by the model's factors on rate and eps: `lr_factor`, `eps_factor`.

    It declares them, by the names of its parameters, in methods `learning_rate_factors()` and `epsilon_factors()`.
    """
    rates, epsilons = (
        {name: factor for name, factor in declared(model, method).items() if factor != 1}
        for method in ("learning_rate_factors", "epsilon_factors")
    )
    if not rates and not epsilons:
        return groups
    split = []
    for group in groups:
        parts: dict[tuple[float, float], list[Any]] = {}
        for name, parameter in group["params"]:
            parts.setdefault((rates.get(name, 1.0), epsilons.get(name, 1.0)), []).append((name, parameter))
        for (rate, eps), named in sorted(parts.items(), key=lambda part: part[0], reverse=True):
            split.append({**group, "params": named, "lr_factor": rate, "eps_factor": eps})
    return split


def take_factors(group: Any) -> tuple[float, float]:
    """Remove a group's factors on learning rate and eps, and return them."""
    taken = [group.pop(key, 1.0) if isinstance(group, dict) else 1.0 for key in ("lr_factor", "eps_factor")]
    for key, factor in zip(("lr_factor", "eps_factor"), taken, strict=True):
        if type(factor) not in (int, float) or not 0 <= factor < math.inf:
            raise UserError(f"{key} of a parameter group is {factor!r}; it must be a number, finite and not negative")
    return taken[0], taken[1]


def apply_factors(group: dict[str, Any], lr: float, eps: float, *, independent: bool) -> None:
    """Multiply a group's learning rate and eps; a step decays its weights as before.

    `independent`: whether weight decay does not follow the learning rate, and only its bound does.
    """
    decay = "decay_bound" if independent else "weight_decay"
    for key, factor in (("lr", lr), ("peak_lr", lr), ("initial_lr", lr), ("eps", eps), (decay, 1 / lr if lr else 1.0)):
        if factor != 1 and group.get(key) is not None:
            group[key] = group[key] * factor


def named_groups(owner: str, given: Iterable[Any]) -> list[dict[str, Any]]:
    """Parameters, named ones or groups as groups whose "params" are (name, parameter) pairs; the name may be ""."""
    if isinstance(given, Tensor):
        raise UserError(f"{owner}: a single tensor was given; it must be a list of parameters")
    entries = list(given)
    groups = entries if entries and isinstance(entries[0], Mapping) else [{"params": entries}]
    named = []
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group:
            raise UserError(f"{owner}: a parameter group is a {type(group).__name__}; it must be a dict with 'params'")
        params = group["params"]
        pairs = [_pair(owner, entry) for entry in ([params] if isinstance(params, Tensor) else params)]
        names = group.get("param_names")
        if names is not None and not (isinstance(names, (list, tuple)) and len(names) == len(pairs)):
            raise UserError(f"{owner}: param_names of a group is {names!r}; it must be a name for each parameter")
        named.append({**group, "params": pairs})
    return named


def require_some(owner: str, groups: Iterable[Mapping[str, Any]]) -> None:
    """Refuse groups without any parameter."""
    if not any(group["params"] for group in groups):
        raise UserError(f"{owner}: no parameters were given, there is nothing to optimize")


def called(name: str, p: Tensor) -> str:
    """Name of a parameter for messages."""
    return f"parameter '{name}'" if name else f"a parameter of shape {tuple(p.shape)}"


def hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group, without its parameters."""
    return {key: value for key, value in group.items() if key not in OWN_KEYS}


def named_as(groups: Sequence[Mapping[str, Any]], params: Iterable[Any]) -> list[Any]:
    """Parameters for a group beside `groups`, with names if these have them: torch takes either all or none."""
    pairs = [_pair("", entry) for entry in ([params] if isinstance(params, Tensor) else params)]
    if not groups or "param_names" not in groups[0]:
        return [p for _, p in pairs]
    return [(name or f"{len(groups)}.{i}", p) for i, (name, p) in enumerate(pairs)]


def as_given(pairs: Iterable[tuple[str, Tensor]]) -> list[Any]:
    """(name, parameter) pairs as torch takes them: with names if all have one, else without."""
    pairs = list(pairs)
    return pairs if all(name for name, _ in pairs) else [p for _, p in pairs]


def _pair(owner: str, entry: Any) -> tuple[str, Tensor]:
    name, p = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
    if not isinstance(p, Tensor):
        raise UserError(f"{owner}: cannot optimize a {type(p).__name__}; parameters are tensors")
    return str(name), p

"""Building of the library's optimizers, with the defaults of their entries and groups as the library takes them."""

from collections.abc import Mapping
from typing import Any

import torch

from danalab.errors import MissingExtra, UserError
from danalab.optim.matrix.hybrid import AUXILIARY
from danalab.optim.registry.spec import Setting

EXTRA = "baselines"


def build(
    name: str,
    class_name: str,
    known: Mapping[str, Setting],
    constants: Mapping[str, Any],
    by_kind: bool,
    params: Any,
    lr: float,
    **settings: Any,
) -> torch.optim.Optimizer:
    """The library's optimizer for `params`, with the entry's defaults for what `settings` lacks."""
    try:
        from danalab.optim.registry.catalogue import library_classes
    except ImportError as error:
        raise MissingExtra("pytorch-optimizer", EXTRA, f"optimizer {name}") from error
    groups = list(params)
    values = {setting: what.default for setting, what in known.items()} | settings | dict(constants)
    if "foreach" in values and values["foreach"] is None and not any(p.is_cuda for p in _tensors(groups)):
        values["foreach"] = False  # lists of tensors gain nothing on CPUs
    if "lr_1d" in values and values["lr_1d"] is None:
        values["lr_1d"] = lr
    if by_kind:
        aux_lr, factor, aux_decay = (values.pop(setting) for setting in AUXILIARY)
        values["adamw_lr"] = factor * lr if aux_lr is None else aux_lr
        values["adamw_wd"] = aux_decay or 0.0
        groups = _with_kinds(name, groups, values["adamw_lr"], values.get("weight_decay", 0.0), aux_decay)
    return library_classes.find(class_name)(groups, lr=lr, **values)


def _tensors(groups: list[Any]) -> list[Any]:
    return [p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])]


def _with_kinds(
    name: str, groups: list[Any], adamw_lr: float, weight_decay: float, aux_decay: float | None
) -> list[dict[str, Any]]:
    """Groups with `use_muon`: given, or inferred where a group has only matrices, or none."""
    if groups and not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    found = []
    for group in groups:
        if group.get("kind") in ("experts", "router"):
            # The library treats a stack as the matrix of a convolution, which would orthogonalise experts together; and
            # it decays other parameters only where the group has a weight decay.
            decay = weight_decay if aux_decay is None else aux_decay
            group = {"weight_decay": decay, **group, "use_muon": False}
        if "use_muon" not in group:
            are_matrices = {p.ndim > 1 for p in group["params"]}
            if len(are_matrices) > 1:
                raise UserError(f"{name}: a group has matrices and vectors; give a model, or groups with use_muon")
            group = {**group, "use_muon": are_matrices == {True}}
        found.append(group if group["use_muon"] else {"lr": adamw_lr, **group})
    return found

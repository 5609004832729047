"""The check of a state_dict before it is loaded: where it is refused, nothing has changed.

Every optimizer uses it: those with rules, wrappers, libraries' in adapters, and ZeRO, whose state may be shards.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from danalab.errors import UserError
from danalab.optim.step.state_formats import format_of, stored_shapes

log = logging.getLogger(__name__)

IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Group keys that choose how a step is computed: a checkpoint does not change them."""

NEWEST = ("age", "fresh", "buffers", "buffer_ages", "normalise", "row_beta", "per_head", "hold_norm", "uw_floor",
          "orthogonalise")  # fmt: skip
"""Settings that version 0.2 gained late: where a state_dict lacks them, those of construction stay."""

LATER = ("decay_bound", "beta2", "momentum_cooldown", "cautious_decay", "scaled_decay", "state_dtype", *NEWEST)
"""Settings that version 0.1 did not have: its state_dicts lack them."""

_MOVING = ("lr", "initial_lr", "max_lr", "min_lr", "base_lr", "params", "param_names", "use_muon", "kind")
"""Keys of groups that schedules change, and that are no settings."""

_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "module")

FOREIGN = ("betas", "momentum", "nesterov", "amsgrad", "clipsnr", "delta", "kappa", "alpha", "rho", "dampening")
"""Hyper-parameters of other optimizers: they distinguish a foreign state_dict from one with a user's own key."""


def parameter_name(group: Mapping[str, Any], index: int) -> str:
    """Name of parameter `index` of a group for messages."""
    names = group.get("param_names")
    if names:
        return f"parameter '{names[index]}'"
    return f"parameter {index} of its group (shape {tuple(group['params'][index].shape)})"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of all leaves of nested lists and dicts."""
    if not isinstance(value, (Mapping, list, tuple)):
        yield path, value
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves(item, f"{path}.{key}" if path else str(key))


def check_groups(
    owner: str, groups: list[dict[str, Any]], saved: Any, needed: Iterable[str] = (), maker: str = ""
) -> None:
    """Refuse what is no state_dict, or one of other groups or of another optimizer (`maker` may be noted in them).

    `needed`: settings that its groups must have.
    """
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= set(saved):
        raise UserError(f"{owner}: not an optimizer state_dict (it has no 'state' and 'param_groups')")
    saved_groups, states = saved["param_groups"], saved["state"]
    are_states = isinstance(states, Mapping) and all(isinstance(entry, Mapping) for entry in states.values())
    if not are_states or not _are_groups(saved_groups):
        raise UserError(f"{owner}: not an optimizer state_dict (its 'state' or its 'param_groups' have another form)")
    if len(groups) != len(saved_groups):
        raise UserError(
            f"{owner}: the state_dict has {len(saved_groups)} parameter groups, this optimizer {len(groups)};"
            " build it with the groups of the saved run"
        )
    for number, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(saved_group["params"]):
            raise UserError(
                f"{owner}: group {number} of the state_dict has {len(saved_group['params'])} parameters,"
                f" this optimizer's {len(group['params'])}; build it with the groups of the saved run"
            )
        if maker and (made_by := saved_group.get("made_by", maker)) != maker:
            raise UserError(f"{owner}: the state_dict belongs to optimizer '{made_by}'; load it into one of its kind")
        missing = sorted(set(needed) - set(saved_group))
        foreign = sorted(key for key in FOREIGN if key in saved_group and key not in group)
        if missing or foreign:
            raise UserError(
                f"{owner}: the state_dict belongs to another optimizer (group {number}"
                f" {_difference(missing, foreign)}); load it into the class that saved it"
            )


def entries(groups: Iterable[Mapping[str, Any]], saved: Any) -> Iterator[tuple[str, Tensor, Any]]:
    """(name, parameter, its state in the state_dict or None) of all parameters."""
    for group, saved_group in zip(groups, saved["param_groups"], strict=True):
        for index, (p, key) in enumerate(zip(group["params"], saved_group["params"], strict=True)):
            yield parameter_name(group, index), p, saved["state"].get(key)


def check_entry(
    owner: str, name: str, p: Tensor, entry: Mapping[str, Any], form: Any, optional: Iterable[str] = ()
) -> None:
    """Refuse the state of one parameter that lacks something, or has other shapes or an impossible step count.

    `form` is what it has to be: nested, with anything that has a shape in place of tensors; `optional` keys may be
    there.
    """
    lacks, extra = sorted(set(form) - set(entry) - set(optional)), sorted(set(entry) - set(form) - set(optional))
    wanted, given = dict(leaves(form)), dict(leaves(entry))
    if lacks or extra:
        raise UserError(
            f"{owner}: the state of {name} {_difference(lacks, extra)}: it belongs to another optimizer or to other"
            " settings; load it into the class that saved it"
        )
    for path, outline in wanted.items():
        shape, leaf = getattr(outline, "shape", None), given.get(path)
        if path.split(".")[0] not in entry or (shape is None and not path.endswith("step")):
            continue
        if path.endswith("step"):
            _check_step(owner, name, leaf)
        elif not hasattr(leaf, "shape") and (shape or not isinstance(leaf, (int, float))):
            raise UserError(f"{owner}: {path} of {name} is no tensor in the state_dict")
        elif tuple(getattr(leaf, "shape", ())) != tuple(shape or ()):
            raise UserError(
                f"{owner}: {path} of {name} has shape {tuple(getattr(leaf, 'shape', ()))} in the state_dict; it must be"
                f" {tuple(shape or ())} for a parameter of shape {tuple(p.shape)}: it was saved from another model"
            )


def check_rule_state(
    optimizer: torch.optim.Optimizer, moments_of: Callable[[Mapping[str, Any]], tuple[str, ...]], saved: Any
) -> None:
    """Refuse a state_dict that does not fit an optimizer with a rule for each group."""
    owner, groups = type(optimizer).__name__, optimizer.param_groups
    given = {key for key in groups[0] if key in optimizer.defaults and key not in {*IMPLEMENTATION, *LATER}}
    check_groups(owner, groups, saved, given | {"peak_lr"} | ({"use_muon"} & set(groups[0])))
    for group, saved_group in zip(groups, saved["param_groups"], strict=True):
        own, other = (each.get("state_dtype", "float32") for each in (group, saved_group))
        if own != other:
            raise UserError(f"{owner}: the state_dict has state_dtype {other}, not {own}; build it with {other}")
        for i, (name, p, entry) in enumerate(entries([group], {**saved, "param_groups": [saved_group]})):
            if not entry and (not p.requires_grad or i in saved_group.get("unstepped", ())):
                continue
            if entry is None:
                raise UserError(f"{owner}: the state_dict has no state for {name}: it was saved before that parameter")
            shapes = stored_shapes(moments_of(group), p, format_of(group, p))
            shapes |= {"age": ()} if "age" in entry else {}
            form = {"step": None, **{key: torch.empty(shape, device="meta") for key, shape in shapes.items()}}
            check_entry(owner, name, p, entry, form)


def by_names(owner: str, groups: list[dict[str, Any]], saved: Any) -> Any:
    """A state_dict with its parameters in the groups and in the order of `groups`, by their names.

    Unchanged where either side has no names. A group may be a part of a saved one (version 0.1 kept named parameters in
    one); its settings are those of the saved group of most of its parameters. Frozen parameters may be missing.

    UserError: other names, or other groups.
    """
    if not isinstance(saved, Mapping) or not _are_groups(saved.get("param_groups")):
        return saved
    homes: dict[str, tuple[int, Any, bool]] = {}  # name -> its saved group, key, and whether it has taken no step
    for number, group in enumerate(saved["param_groups"]):
        for i, (name, key) in enumerate(zip(group.get("param_names", ()), group["params"], strict=False)):
            homes[plain_name(str(name))] = number, key, i in group.get("unstepped", ())
    counts = [len(group["params"]) for group in saved["param_groups"]]
    own = [[plain_name(name) for name in group.get("param_names", ())] for group in groups]
    if (
        not homes
        or len(homes) != sum(counts)
        or any(len(n) != len(g["params"]) for n, g in zip(own, groups, strict=True))
    ):
        return saved
    frozen = {
        name
        for n, g in zip(own, groups, strict=True)
        for name, p in zip(n, g["params"], strict=True)
        if not p.requires_grad
    }
    names = {name for each in own for name in each}
    lacks, extra = sorted(names - set(homes) - frozen), sorted(set(homes) - names)
    if lacks or extra:
        if counts != list(map(len, own)):
            return saved  # another model: `check_groups` says so
        raise UserError(
            f"{owner}: the state_dict has {_listed(extra)} where this optimizer has {_listed(lacks)}; load it into the"
            " model that saved it (without 'param_names' in its groups it is loaded in order)"
        )
    parts = []
    for group, each in zip(groups, own, strict=True):
        numbers = Counter(homes[name][0] for name in each if name in homes)
        if len(numbers) > 1 and len(counts) != len(groups):
            raise UserError(
                f"{owner}: the state_dict has its parameters in {len(counts)} groups, this optimizer in {len(groups)}"
                " others; build it with the groups of the saved run"
            )
        whole = saved["param_groups"][numbers.most_common(1)[0][0]] if numbers else group
        keys = [homes[name][1] if name in homes else f"frozen {name}" for name in each]
        part = {**whole, "params": keys, "param_names": list(group["param_names"])} if each else {**whole, "params": []}
        if "unstepped" in whole:
            part["unstepped"] = [i for i, name in enumerate(each) if name not in homes or homes[name][2]]
        parts.append(part)
    return {**saved, "param_groups": parts}


def plain_name(name: str) -> str:
    """A parameter's name without the parts that torch's wrappers of a model add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def warn_of_replaced(owner: str, built: Iterable[Mapping[str, Any]], loaded: Iterable[Mapping[str, Any]]) -> None:
    """Warn of settings of construction that a loaded state_dict replaced by others."""
    changes: dict[str, None] = {}
    for asked, group in zip(built, loaded, strict=True):
        for key in (key for key in asked if key not in (*IMPLEMENTATION, *_MOVING)):
            if key in group and _value(group[key]) != _value(asked[key]):
                changes[f"{key} {_shown(group[key])} (built with {_shown(asked[key])})"] = None
    if changes:
        log.warning(
            f"{owner}: the state_dict goes on with its {', '.join(changes)}; to change a setting of a resumed run, set"
            " it in param_groups after load_state_dict"
        )


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else str(value)
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(names: list[str]) -> str:
    if not names:
        return "no such parameter"
    return ", ".join(f"'{name}'" for name in names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


def _are_groups(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not all(isinstance(group, Mapping) for group in value):
        return False
    lists = [group.get("params") for group in value]
    lists += [group.get(key, []) for group in value for key in ("param_names", "unstepped")]
    return all(isinstance(keys, (list, tuple)) and all(isinstance(key, (int, str)) for key in keys) for keys in lists)


def _difference(lacks: list[str], extra: list[str]) -> str:
    parts = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(extra)}"] * bool(extra)
    return " and ".join(parts)


def _check_step(owner: str, name: str, step: Any) -> None:
    """Refuse a step count that is no whole number from 0 on."""
    value = step.item() if isinstance(step, Tensor) and step.numel() == 1 else step
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 2**53 or value != int(value):
        raise UserError(f"{owner}: the step count of {name} is {str(value)[:40]} in the state_dict, not 0 or more")


class ScheduleLR(LambdaLR):
    """`LambdaLR` that also loads the state of version 0.1, where named parameters were one group."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = len(self.optimizer.param_groups)
        lists = {name: value for name, value in state_dict.items() if isinstance(value, list) and len(value) == 1}
        super().load_state_dict({**state_dict, **{name: value * groups for name, value in lists.items()}})

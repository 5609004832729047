"""An optimizer's state_dict as flat, named tensors plus plain values for JSON, and back.

optim.NAME.exp_avg          a tensor of the state of parameter NAME
optim.NAME.Q.0              a tensor within a list; the plain values say where it belongs
optim_extra.KEY             a tensor that belongs to no parameter
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from danalab.errors import UserError
from danalab.optim.distributed.shards import SavedTensor

OPTIM, EXTRA = "optim.", "optim_extra."
_TENSOR, _TUPLE, _PAIRS = "__tensor__", "__tuple__", "__pairs__"


def flatten(state_dict: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, SavedTensor], dict[str, Any]]:
    """(tensors or shards by flat name; plain values).

    Args:
        names: of the parameters, in the order of the groups.
    Raises:
        UserError: a value is neither a tensor nor plain.
    """
    tensors: dict[str, SavedTensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    for name, key in zip(names, keys, strict=True):
        for what, value in state_dict["state"].get(key, {}).items():
            if _is_tensor(value):
                tensors[f"{OPTIM}{name}.{what}"] = _detached(value)
            else:
                plain.setdefault(name, {})[what] = _encode(value, f"{OPTIM}{name}.{what}", tensors)
    groups = [
        {
            key: value.item() if isinstance(value, Tensor) else _encode_setting(value, key)
            for key, value in group.items()
            if key not in ("params", "param_names")
        }
        for group in state_dict["param_groups"]
    ]
    meta: dict[str, Any] = {
        "groups": groups,
        "counts": [len(group["params"]) for group in state_dict["param_groups"]],
        "names": list(names),
        "state": plain,
    }
    extra = {
        key: _encode(value, EXTRA + key, tensors)
        for key, value in state_dict.items()
        if key not in ("state", "param_groups")
    }
    return tensors, {**meta, "extra": extra} if extra else meta


def unflatten(
    meta: Mapping[str, Any],
    stored: Sequence[str],
    groups: Sequence[Mapping[str, Any]],
    tensor: Callable[[str, str | None], SavedTensor],
) -> dict[str, Any]:
    """The state_dict that was flattened.

    Args:
        stored: flat names of all tensors of the checkpoint.
        groups: `param_groups` of the optimizer that loads it.
        tensor: (flat name, name of the parameter or None) -> the tensor, or this rank's shard of it.
    """
    place = {name: index for index, name in enumerate(meta["names"])}
    state: dict[int, dict[str, Any]] = {}
    for flat in stored:
        name, _, what = flat.removeprefix(OPTIM).rpartition(".")
        if flat.startswith(OPTIM) and name in place:
            state.setdefault(place[name], {})[what] = tensor(flat, name)
    for name, values in meta["state"].items():
        for what, value in values.items():
            decoded = _decode(value, lambda flat, name=name: tensor(flat, name))
            state.setdefault(place[name], {})[what] = decoded
    restored, first = [], 0
    for group, saved in zip(groups, meta["groups"], strict=True):
        count = len(group["params"])
        settings = {
            key: tuple(value) if isinstance(group.get(key), tuple) else _decode(value, _no_tensor)
            for key, value in saved.items()
        }
        restored.append({**settings, "params": list(range(first, first + count))})
        first += count
    extra = {key: _decode(value, lambda flat: tensor(flat, None)) for key, value in meta.get("extra", {}).items()}
    return {"state": dict(sorted(state.items())), "param_groups": restored, **extra}


def _encode_setting(value: Any, name: str) -> Any:
    return list(value) if isinstance(value, tuple) else _encode(value, name, None)


def _encode(value: Any, flat: str, tensors: dict[str, SavedTensor] | None) -> Any:
    """`value` for JSON; tensors in it go to `tensors`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if _is_tensor(value) and tensors is not None:
        tensors[flat] = _detached(value)
        return {_TENSOR: flat}
    if isinstance(value, (list, tuple)):
        encoded = [_encode(item, f"{flat}.{n}", tensors) for n, item in enumerate(value)]
        return {_TUPLE: encoded} if isinstance(value, tuple) else encoded
    if isinstance(value, Mapping):
        return {_PAIRS: [[key, _encode(item, f"{flat}.{key}", tensors)] for key, item in _plain_keys(value, flat)]}
    raise UserError(f"optimizer state {flat} is a {type(value).__name__}, which a checkpoint cannot hold")


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a shard that torch.distributed.checkpoint can write."""
    return isinstance(value, Tensor) or hasattr(value, "__create_write_items__")


def _detached(value: SavedTensor) -> SavedTensor:
    return value.detach() if isinstance(value, Tensor) else value


def _plain_keys(value: Mapping[Any, Any], flat: str) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items():
        if not isinstance(key, (str, int)):
            raise UserError(f"optimizer state {flat} has a {type(key).__name__} as key, which a checkpoint cannot hold")
        yield key, item


def _decode(value: Any, tensor: Callable[[str], SavedTensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensor(value[_TENSOR])
    if _TUPLE in value:
        return tuple(_decode(item, tensor) for item in value[_TUPLE])
    if _PAIRS in value:
        return {key: _decode(item, tensor) for key, item in value[_PAIRS]}
    return value


def _no_tensor(flat: str) -> Tensor:
    raise UserError(f"a setting of an optimizer's group refers to the tensor {flat}")

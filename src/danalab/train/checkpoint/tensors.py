"""Model and optimizer as flat, named tensors plus plain values, and back.

    model.NAME                   the model's state dict
    optim.NAME.exp_avg, ...      optimizer state, by the parameter's name
    meta["optimizer"]            hyper-parameters of each group, and state that is no tensor

Written and read by torch.distributed.checkpoint, so that other world sizes and shardings can read them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from danalab.train.checkpoint.store import DamagedCheckpointError

MODEL, OPTIM = "model.", "optim."


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters in the order of its groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def collect(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(flat tensors, aliasing what training changes; plain values for meta.json)."""
    tensors = {MODEL + name: value.detach() for name, value in model.state_dict().items()}
    plain_state: dict[str, dict[str, Any]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, p in zip(parameter_names(model, optimizer), parameters, strict=True):
        for key, value in optimizer.state[p].items() if p in optimizer.state else ():
            if isinstance(value, Tensor):
                tensors[f"{OPTIM}{name}.{key}"] = value.detach()
            else:
                plain_state.setdefault(name, {})[key] = value
    groups = [
        {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
    counts = [len(group["params"]) for group in optimizer.param_groups]
    names = parameter_names(model, optimizer)
    return tensors, {"groups": groups, "counts": counts, "names": names, "state": plain_state}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def write(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write host tensors into `folder`.

    Raises:
        OSError: the disk is full or not writable.
    """
    writer = dcp.FileSystemWriter(folder, sync_files=False)  # `commit` syncs them, with everything else
    try:
        with _alone():
            dcp.save(dict(tensors), storage_writer=writer, no_dist=True)
    except CheckpointException as error:  # a BaseException, which `except Exception` would let through
        raise _cause(error) from error


def read(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    keep_settings: bool = False,
) -> None:
    """Load a verified checkpoint in place: the optimizer first, the model last.

    Args:
        optimizer: None loads the model only.
        meta: the "optimizer" part of meta.json.
        keep_settings: take moments and clocks, but not the hyper-parameters of the optimizer's groups.
    Raises:
        DamagedCheckpointError: the tensors cannot be read, or are not those of this model and optimizer.
    """
    try:
        stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        if optimizer is not None and meta is not None:
            _read_optimizer(folder, stored, model, optimizer, meta, keep_settings)
        # The model's own tensors are the target: what is sharded stays sharded.
        target = {MODEL + name: value.detach() for name, value in model.state_dict().items()}
        _require_same_model(folder, stored, target)
        _load(target, folder)
    except DamagedCheckpointError:
        raise
    except CheckpointException as error:
        raise DamagedCheckpointError(f"{folder}: its tensors cannot be read: {_cause(error)}") from error
    except Exception as error:  # unpickling .metadata can fail with anything
        raise DamagedCheckpointError(f"{folder}: cannot be read: {type(error).__name__}: {error}") from error


def _require_same_model(folder: Path, stored: Mapping[str, Any], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        entry = stored.get(name)
        if entry is None:
            raise DamagedCheckpointError(f"{folder}: has no tensor '{name}'; it is a checkpoint of another model")
        if tuple(entry.size) != tuple(tensor.shape):
            raise DamagedCheckpointError(
                f"{folder}: {name} has shape {list(entry.size)} there and {list(tensor.shape)} in this model"
            )


def _read_optimizer(
    folder: Path,
    stored: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: Mapping[str, Any],
    keep_settings: bool,
) -> None:
    names = parameter_names(model, optimizer)
    saved_names: list[str] = meta["names"]
    if names != saved_names or [len(group["params"]) for group in optimizer.param_groups] != meta["counts"]:
        raise DamagedCheckpointError(f"{folder}: its optimizer has other parameters or groups than this one")
    parameters = dict(zip(names, [p for group in optimizer.param_groups for p in group["params"]], strict=True))
    target: dict[str, Tensor] = {}
    by_name: dict[str, dict[str, Any]] = {}
    for key, entry in stored.items():
        if key.startswith(OPTIM) and isinstance(entry, TensorStorageMetadata):
            name, _, what = key.removeprefix(OPTIM).rpartition(".")
            target[key] = by_name.setdefault(name, {})[what] = _empty_like(entry, parameters[name])
    _load(target, folder)
    state: dict[int, dict[str, Any]] = {}
    for index, name in enumerate(names):
        values = {**by_name.get(name, {}), **meta["state"].get(name, {})}
        if values:
            state[index] = values
    groups, first = [], 0
    for group, saved in zip(optimizer.param_groups, meta["groups"], strict=True):
        count = len(group["params"])
        restored = {key: tuple(v) if isinstance(group.get(key), tuple) else v for key, v in saved.items()}
        if keep_settings or "param_names" in group:
            own = group if keep_settings else {"param_names": group["param_names"]}
            restored |= {key: value for key, value in own.items() if key != "params"}
        groups.append({**restored, "params": list(range(first, first + count))})
        first += count
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _empty_like(entry: TensorStorageMetadata, parameter: Tensor) -> Tensor:
    dtype = entry.properties.dtype
    if tuple(entry.size) == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype)  # sharded as the parameter is
    return torch.zeros(entry.size, dtype=dtype)


def _load(target: dict[str, Tensor], folder: Path) -> None:
    with _alone():
        dcp.load(target, storage_reader=dcp.FileSystemReader(folder), no_dist=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """torch warns of what we mean: that one process saves by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _cause(error: CheckpointException) -> Exception:
    """The failure inside: CheckpointException wraps it with the rank that met it."""
    for wrapped in error.failures.values():
        inner = wrapped[0] if isinstance(wrapped, tuple) else wrapped
        if isinstance(inner, Exception):
            return inner
    return RuntimeError(str(error).splitlines()[0] if str(error) else type(error).__name__)

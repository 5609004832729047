"""Model and optimizer as one nested state, written and read by torch.distributed.checkpoint.

    model.NAME                           the model's state dict
    optim.state.NAME.exp_avg, ...        optimizer state, by the parameter's name
    optim.param_groups.0.lr, ...         hyper-parameters of each group

Tensors are blocks in files, plain values are bytes beside them. A checkpoint does not depend on the number of ranks and
the sharding that wrote it, so any number of ranks can read it in any layout.
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
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict as unflatten
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from danalab.errors import UserError
from danalab.files import naming
from danalab.optim.tensor_shard import SavedTensor
from danalab.train.parallel.world import World

MODEL, OPTIM = "model.", "optim."
"""Prefixes of names in a checkpoint."""
Paths = dict[str, tuple[Any, ...]]
"""Name in a checkpoint -> keys in the nested state."""


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters in the order of its groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """The nested state, whose tensors share memory with model and optimizer; of shards this rank's. Collective."""
    state: dict[str, Any] = {"model": {name: value.detach() for name, value in model.state_dict().items()}}
    if optimizer is None:
        return state
    # ZeRO's has each rank's own part alone.
    own = getattr(optimizer, "sharded_state_dict", optimizer.state_dict)()
    names = parameter_names(model, optimizer)
    named = dict(zip((key for group in own["param_groups"] for key in group["params"]), names, strict=True))
    state["optim"] = {
        **own,
        "state": {named[key]: value for key, value in own["state"].items()},
        "param_groups": [
            {**_without(group, "param_names"), "params": [named[key] for key in group["params"]]}
            for group in own["param_groups"]
        ],
    }
    return state


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], Paths]:
    """(tensors, shards and plain values by name, their places in the nested state)."""
    flat, paths = flatten_state_dict(dict(state))
    for name, value in flat.items():
        if not (
            value is None or _is_tensor(value) or isinstance(value, (bool, int, float, str, list, tuple))
        ):
            raise UserError(
                f"optimizer state {name} is a {type(value).__name__}, which a checkpoint cannot hold"
            )
    return flat, paths


def sharded_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """The nested state without tensors and values that every rank has."""
    flat, paths = flatten(state)
    return unflatten({name: value for name, value in flat.items() if hasattr(value, "to_local")}, paths)


def write(state: Mapping[str, Any], folder: Path, world: World = World()) -> None:  # noqa: B008 - frozen
    """Write this rank's host tensors into `folder`. Collective. OSError, on all ranks: a full or read-only disk."""
    writer = _Writer(folder, sync_files=False)  # `commit` syncs them, with everything else
    alone = world.size == 1
    try:
        with _quietly():
            dcp.save(
                dict(state),
                storage_writer=writer,
                planner=_SavePlanner(flatten_sharded_tensors=False),
                no_dist=alone,
                process_group=None if alone else world.control,
            )
    except CheckpointException as error:  # a BaseException, which `except Exception` would let through
        cause = _cause(error)
        cause.rank = next(iter(error.failures), world.rank)  # pyright: ignore[reportAttributeAccessIssue]
        raise cause from error


def read(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    keep_settings: bool = False,
    prefix: str = MODEL,
) -> None:
    """Load a verified checkpoint in place, the optimizer first (None: the model only). Each rank reads what it holds.

    `keep_settings` leaves the hyper-parameters of the groups as they are; the weights are those with `prefix`.
    UserError: tensors that cannot be read, or do not belong to this model and optimizer.
    """
    # The model's own tensors are the target, sharded or not.
    target = {prefix + name: value.detach() for name, value in model.state_dict().items()}
    foreign = sorted(name for name in names_in(folder) if name.startswith(prefix) and name not in target)
    if foreign:
        raise UserError(f"{folder}: has a tensor '{foreign[0]}'; it is a checkpoint of another model")
    if optimizer is not None:
        read_optimizer(folder, model, optimizer, keep_settings)
    read_named(folder, target)


def read_named(folder: Path, target: Mapping[str, Tensor]) -> None:
    """Load tensors of a verified checkpoint in place, by name; UserError: one is missing or unreadable."""
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    for name, tensor in target.items():
        if name not in stored:
            raise UserError(f"{folder}: has no tensor '{name}'; it is a checkpoint of another model")
        size = list(getattr(stored[name], "size", ()))
        if size != list(tensor.shape):
            raise UserError(f"{folder}: {name} has shape {size}, here {list(tensor.shape)}")
    _load(target, folder)


def names_in(folder: Path) -> set[str]:
    """The names of a checkpoint's tensors and values."""
    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


def read_optimizer(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keep_settings: bool,
    prefix: str = OPTIM,
) -> None:
    """Load the optimizer's state of a verified checkpoint in place; see `read`."""
    metadata, depth = FileSystemReader(folder).read_metadata(), prefix.count(".")
    names, groups = parameter_names(model, optimizer), optimizer.param_groups
    place = {name: index for index, name in enumerate(names)}
    parameters = [p for group in groups for p in group["params"]]
    sliced = getattr(optimizer, "empty_shard", None)  # ZeRO's
    stored = metadata.planner_data.items()
    paths: Paths = {name: path[depth:] for name, path in stored if name.startswith(prefix)}
    target: dict[str, Any] = {}
    for name, path in paths.items():
        entry = metadata.state_dict_metadata[name]
        if isinstance(entry, BytesStorageMetadata):
            target[name] = None
        elif path[0] == "state" and path[1] in place and sliced:
            target[name] = sliced(place[path[1]], entry.size, entry.properties.dtype)
        elif path[0] == "state" and path[1] in place and parameters[place[path[1]]].shape == entry.size:
            target[name] = torch.zeros_like(parameters[place[path[1]]], dtype=entry.properties.dtype)
        else:
            target[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
    state: dict[str, Any] = unflatten(_load(target, folder), paths)
    ours = [[names.pop(0) for _ in group["params"]] for group in groups]
    if [group["params"] for group in state["param_groups"]] != ours:
        raise UserError(f"{folder}: its optimizer has other parameters or groups than this one")
    state["state"] = {place[name]: value for name, value in state.get("state", {}).items()}
    counted = {"params", "train_mode", "weight_sum", "lr_max", "step", "d", "d_max"}  # not settings
    for group, restored in zip(groups, state["param_groups"], strict=True):
        restored["params"] = [place[name] for name in restored["params"]]
        kept = group if keep_settings else {key: group[key] for key in ("param_names",) if key in group}
        restored |= _without(kept, *counted)
    optimizer.load_state_dict(state)


def _without(group: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in names}


def _load(target: Mapping[str, SavedTensor | None], folder: Path) -> dict[str, Any]:
    """Read into the tensors of `target`; returns it, with the plain values where it has None."""
    planner = _LoadPlanner(flatten_state_dict=False)
    try:
        with _quietly():
            dcp.load(dict(target), storage_reader=FileSystemReader(folder), planner=planner, no_dist=True)
    except CheckpointException as error:
        raise UserError(f"{folder}: its tensors cannot be read: {_cause(error)}") from error
    return planner.state_dict


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a shard that torch.distributed.checkpoint can write."""
    return isinstance(value, Tensor) or hasattr(value, "__create_write_items__")


class _Writer(dcp.FileSystemWriter):
    """torch's writer, raising the system's error: torch's errors lose their cause on the way to other ranks."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's files."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            with naming(self.path):
                raise _system_error(error) or error from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hides torch's warning that a process saves or loads alone, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _cause(error: CheckpointException) -> Exception:
    """The error inside a CheckpointException, which wraps it with its rank."""
    for wrapped in error.failures.values():
        inner = wrapped[0] if isinstance(wrapped, tuple) else wrapped
        if isinstance(inner, Exception):
            return _system_error(inner) or inner
    return RuntimeError(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's error in a chain: for a full disk torch raises an error about positions in its archive."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


class _SavePlanner(DefaultSavePlanner):
    """Writes the blocks of shards, too."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The values to write for an index of the checkpoint."""
        value = self.state_dict[index.fqn]
        return value.block(index.offset) if hasattr(value, "block") else super().lookup_object(index)


class _LoadPlanner(DefaultLoadPlanner):
    """Reads into tensors and into the blocks of shards, and plain values without running code."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Register the targets; torch's own method would replace shards by None."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor to read into for an index of the checkpoint."""
        value = self.state_dict[index.fqn]
        return value.block(index.offset) if hasattr(value, "block") else super().lookup_tensor(index)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Keep a plain value."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

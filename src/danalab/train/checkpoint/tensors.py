"""Model and optimizer as flat, named tensors plus plain values, and back.

    model.NAME                   the model's state dict
    optim.NAME.exp_avg, ...      optimizer state, by the parameter's name
    meta["optimizer"]            hyper-parameters of each group, and plain values of the state

Written and read by torch.distributed.checkpoint: a checkpoint does not depend on the number of ranks and the sharding
that wrote it, so any number of ranks can read it in any layout.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta

from danalab.errors import UserError
from danalab.files import naming
from danalab.optim.sharded import SavedTensor, empty_shard, sharded_state_dict
from danalab.train.checkpoint.store import DamagedCheckpointError
from danalab.train.checkpoint.weights import MODEL, open_block, read_metadata, require_same_model
from danalab.train.parallel.world import World


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters in the order of its groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def collect(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, SavedTensor], dict[str, Any]]:
    """(flat tensors that share memory with model and optimizer, this rank's shards; plain values). Collective."""
    tensors: dict[str, SavedTensor] = {MODEL + name: value.detach() for name, value in model.state_dict().items()}
    state, plain = flatten(sharded_state_dict(optimizer), parameter_names(model, optimizer))
    return tensors | state, plain


def write(tensors: Mapping[str, SavedTensor], folder: Path, world: World = World.single()) -> None:  # noqa: B008 - frozen
    """Write this rank's host tensors into `folder`. Collective. OSError, on all ranks: a full or read-only disk."""
    writer = _Writer(folder, sync_files=False)  # `commit` syncs them, with everything else
    alone = world.size == 1
    try:
        with _quietly():
            dcp.save(
                dict(tensors),
                storage_writer=writer,
                planner=SavePlanner(),
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
    meta: Mapping[str, Any] | None = None,
    *,
    keep_settings: bool = False,
) -> None:
    """Load a verified checkpoint in place, the optimizer first (None: the model only). Each rank reads what it holds.

    `meta` is the "optimizer" part of meta.json; `keep_settings` leaves the hyper-parameters of the groups as they are.
    DamagedCheckpointError: tensors that cannot be read, or do not belong to this model and optimizer.
    """
    try:
        stored = CheckpointReader(folder).read_metadata().state_dict_metadata
        # The model's own tensors are the target, sharded or not.
        target = {MODEL + name: value.detach() for name, value in model.state_dict().items()}
        require_same_model(folder, stored, target, MODEL)
        if optimizer is not None and meta is not None:
            _read_optimizer(folder, stored, model, optimizer, meta, keep_settings)
        _load(target, folder)
    except DamagedCheckpointError:
        raise
    except UserError as error:  # raised by the optimizer for state that is not its own
        raise DamagedCheckpointError(f"{folder}: does not fit: {error}") from error
    except CheckpointException as error:
        raise DamagedCheckpointError(f"{folder}: its tensors cannot be read: {_cause(error)}") from error
    except Exception as error:  # a damaged file can fail with anything
        raise DamagedCheckpointError(f"{folder}: cannot be read: {type(error).__name__}: {error}") from error


def read_named(folder: Path, target: Mapping[str, Tensor]) -> None:
    """Load tensors of a verified checkpoint in place, by name; DamagedCheckpointError: one is missing or unreadable."""
    try:
        stored = CheckpointReader(folder).read_metadata().state_dict_metadata
        for name in target:
            if name not in stored:
                raise DamagedCheckpointError(f"{folder}: has no tensor '{name}'")
        _load(dict(target), folder)
    except CheckpointException as error:
        raise DamagedCheckpointError(f"{folder}: its tensors cannot be read: {_cause(error)}") from error


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
    indices = {name: index for index, name in enumerate(names)}
    target: dict[str, SavedTensor] = {}

    def place(flat: str, name: str | None) -> SavedTensor:
        if flat in target:  # memory for each of many references
            raise DamagedCheckpointError(f"{folder}: its optimizer state refers to {flat} twice")
        shape, dtype = stored[flat].size, stored[flat].properties.dtype
        target[flat] = (
            torch.zeros(shape, dtype=dtype) if name is None else empty_shard(optimizer, indices[name], shape, dtype)
        )
        return target[flat]

    state = unflatten(meta, list(stored), optimizer.param_groups, place)
    state_keys = {"params", "train_mode", "weight_sum", "lr_max", "step", "d", "d_max"}
    for group, restored in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if keep_settings or "param_names" in group:
            own = group if keep_settings else {"param_names": group["param_names"]}
            restored |= {key: value for key, value in own.items() if key not in state_keys}
    _load(target, folder)
    optimizer.load_state_dict(state)


def _load(target: Mapping[str, SavedTensor], folder: Path) -> None:
    with _quietly():
        dcp.load(dict(target), storage_reader=CheckpointReader(folder), planner=LoadPlanner(), no_dist=True)


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


class SavePlanner(DefaultSavePlanner):
    """Finds the blocks of shards to write."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The values to write for an index of the checkpoint."""
        value = self.state_dict[index.fqn]
        return value.block(index.offset) if hasattr(value, "block") else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """Finds the blocks of shards to read into."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Register the targets; torch's own method would replace shards by None."""
        known = {name: value for name, value in state_dict.items() if isinstance(value, Tensor)}
        super().set_up_planner(known, metadata, is_coordinator)
        self.state_dict = {**self.state_dict, **state_dict}

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor to read into for an index of the checkpoint."""
        value = self.state_dict[index.fqn]
        return value.block(index.offset) if hasattr(value, "block") else super().lookup_tensor(index)


class CheckpointReader(FileSystemReader):
    """Loads no code with the metadata, and every tensor with `weights_only`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See `danalab.train.checkpoint.weights.read_metadata`."""
        metadata: Metadata = read_metadata(Path(self.path), real_classes=True)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        """The bytes of one block; torch would unpack whatever they claim."""
        return open_block(file, sinfo)


OPTIM, EXTRA = "optim.", "optim_extra."
_TENSOR, _TUPLE, _PAIRS = "__tensor__", "__tuple__", "__pairs__"


def flatten(state_dict: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, SavedTensor], dict[str, Any]]:
    """(tensors or shards by flat name; plain values); `names` are the parameters', in the order of the groups."""
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
            key: value.item()
            if isinstance(value, Tensor)
            else _encode(list(value) if isinstance(value, tuple) else value, key, None)
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
    """The state_dict that was flattened, for an optimizer with `groups`; `stored`: flat names of all tensors.

    `tensor`: (flat name, name of the parameter or None) -> the tensor, or this rank's shard of it.
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


def _encode(value: Any, flat: str, tensors: dict[str, SavedTensor] | None) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if _is_tensor(value) and tensors is not None:
        tensors[flat] = _detached(value)
        return {_TENSOR: flat}
    if isinstance(value, (list, tuple)):
        encoded = [_encode(item, f"{flat}.{n}", tensors) for n, item in enumerate(value)]
        return {_TUPLE: encoded} if isinstance(value, tuple) else encoded
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int)):
                raise UserError(f"optimizer state {flat}: a checkpoint cannot hold a {type(key).__name__} as key")
        return {_PAIRS: [[key, _encode(item, f"{flat}.{key}", tensors)] for key, item in value.items()]}
    raise UserError(f"optimizer state {flat} is a {type(value).__name__}, which a checkpoint cannot hold")


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a shard that torch.distributed.checkpoint can write."""
    return isinstance(value, Tensor) or hasattr(value, "__create_write_items__")


def _detached(value: SavedTensor) -> SavedTensor:
    return value.detach() if isinstance(value, Tensor) else value


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

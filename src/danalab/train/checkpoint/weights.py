"""The weights of a model from a checkpoint of any layout and of any origin, in one process, without torch.distributed.

Importing torch.distributed takes longer than decoding a short text. `.metadata` is the file of
torch.distributed.checkpoint that says which tensors there are and where their bytes are. torch unpickles it, which
could call any function. Here only the classes that our checkpoints hold are loaded, all of them plain data, no file
outside the checkpoint is named, and no tensor is larger than its bytes on the disk.
"""

import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from danalab.files import require_uncompressed
from danalab.models.config import ModelConfig, parameter_count
from danalab.train.checkpoint.store import DamagedCheckpointError

MODEL = "model."
"""Prefix of the names of a model's tensors."""


def require_size_of(folder: Path, config: ModelConfig) -> None:
    """Check before a model is built that the checkpoint holds one of its size; else DamagedCheckpointError."""
    stored = {n: each for n, each in read_metadata(folder).state_dict_metadata.items() if n.startswith(MODEL)}
    values = sum(math.prod(entry.size) for entry in stored.values())
    if config.n_layers > len(stored) or parameter_count(config) > values:
        raise DamagedCheckpointError(
            f"{folder}: has {len(stored):,} tensors of {values:,} values, too few for the model of config.json "
            f"({config.n_layers:,} layers, {parameter_count(config):,} parameters)"
        )


@torch.no_grad()
def read_weights(folder: Path, model: nn.Module, prefix: str = MODEL) -> None:
    """Load weights with `prefix` from a verified checkpoint in place. DamagedCheckpointError: not this model's."""
    target = {prefix + name: value for name, value in model.state_dict().items()}
    metadata = read_metadata(folder)
    try:
        require_same_model(folder, metadata.state_dict_metadata, target, prefix)
        places = {(index.fqn, index.offset): place for index, place in metadata.storage_data.items()}
        for name, tensor in target.items():
            _read(folder, metadata.state_dict_metadata[name].chunks, places, name, tensor)
    except DamagedCheckpointError:
        raise
    except Exception as error:  # a damaged file can fail with anything
        raise DamagedCheckpointError(f"{folder}: cannot be read: {type(error).__name__}: {error}") from error


def _read(
    folder: Path, blocks: Sequence[Any], places: Mapping[tuple[str, torch.Size], Any], name: str, target: Tensor
) -> None:
    """Read a tensor's blocks, which must cover it; `places` says where the bytes of a block are."""
    count = 0
    for block in blocks:
        part = target
        for dim, (start, length) in enumerate(zip(block.offsets, block.sizes, strict=True)):
            part = part.narrow(dim, start, length)
        place = places[name, block.offsets]
        with open(folder / place.relative_path, "rb") as file:
            stored = torch.load(open_block(file, place), map_location="cpu", weights_only=True)
        if stored.shape != part.shape:
            raise ValueError(f"a block of '{name}' has shape {list(stored.shape)} instead of {list(part.shape)}")
        part.copy_(stored)
        count += part.numel()
    if count != target.numel():
        raise ValueError(f"'{name}' has {count} of {target.numel()} values")


METADATA = ".metadata"
_PLAIN = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
}  # fmt: skip
"""Module -> names of torch's records."""
_LOADED = {
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}
"""Module -> names that are loaded as they are, besides torch's dtypes."""


_REFUSED = {opcode[0] for opcode in (pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)}
_TUPLES = {opcode[0] for opcode in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)}
_MAX_TUPLE_SIZE, _MAX_TUPLE_DEPTH = 10_000, 16


class Record:
    """Stands for one of torch's records, whose modules take a second to import."""

    def __init__(self, *values: Any):
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            vars(self).update(state)
        else:
            self.values = state

    def _key(self) -> Any:
        name = vars(self).get("fqn")
        if not isinstance(name, str):
            raise pickle.UnpicklingError("it has a record without a name as a key")
        return name, vars(self).get("offset")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _checked(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def load_and_check(unpickler: "_Unpickler") -> None:
        load(unpickler)
        unpickler.check_tuple()

    return load_and_check


class _Unpickler(pickle._Unpickler):  # the one in C allocates a memo as large as a pickle says
    # No metadata holds a bytearray, as large as a pickle says, or a set, whose members are hashed at once.
    dispatch = {  # noqa: RUF012
        code: _checked(load) if code in _TUPLES else load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in _REFUSED
    }

    def __init__(self, file: Any, real_classes: bool):
        super().__init__(file)
        self._real_classes = real_classes
        self._records: dict[str, type] = {}
        self._tuples: dict[int, tuple[Any, int, int]] = {}
        """Tuples by id: a tuple, which is kept alive, its size with all parts written out, and its depth."""

    def check_tuple(self) -> None:
        made = self.stack[-1]  # pyright: ignore[reportAttributeAccessIssue]
        parts = [self._tuples.get(id(item), (item, 1, 0)) for item in made]
        size, depth = 1 + sum(part[1] for part in parts), 1 + max((part[2] for part in parts), default=0)
        if size > _MAX_TUPLE_SIZE or depth > _MAX_TUPLE_DEPTH:
            raise pickle.UnpicklingError("its tuples are nested beyond those of any checkpoint")
        self._tuples[id(made)] = made, size, depth

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if name in _PLAIN.get(module, ()) and not self._real_classes:
            return self._records.setdefault(name, type(name, (Record,), {}))
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _PLAIN.get(module, ()) or name in _LOADED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint holds; nothing of it was run")


def _enum_member(kind: Any, name: Any = None) -> Any:
    """`getattr` where it is safe: Python 3.11.0 to 3.11.3 pickle a member of an enumeration as a call of it."""
    if not (isinstance(kind, type) and kind.__name__ == "_MEM_FORMAT_ENCODING"):
        raise pickle.UnpicklingError("it asks for builtins.getattr, which no checkpoint holds; nothing of it was run")
    members: Any = kind
    return members(name) if issubclass(kind, Record) else members[name]


@lru_cache(maxsize=4)  # a run that is resumed reads the same metadata four times, in Python's slow unpickler
def _loaded(content: bytes, *, real_classes: bool) -> Any:
    return _Unpickler(io.BytesIO(content), real_classes).load()


def read_metadata(folder: Path, *, real_classes: bool = False) -> Any:
    """The metadata of a checkpoint, in torch's own classes (`real_classes`) or `Record`s, or DamagedCheckpointError."""
    try:
        content = (folder / METADATA).read_bytes()
        metadata = _loaded(content, real_classes=False)
        if real_classes:  # whose keys are compared and hashed by torch, whatever they hold
            metadata = _loaded(content, real_classes=True)
        _check(metadata)
        _check_sizes(metadata, folder)
    except Exception as error:  # a damaged pickle can fail with anything
        raise DamagedCheckpointError(f"{folder}: {METADATA} cannot be read: {error or type(error).__name__}") from error
    return metadata


def _check(metadata: Any) -> None:
    """Raise ValueError where metadata has another structure than our checkpoints."""
    if type(metadata).__name__ != "Metadata":
        raise ValueError(f"it holds a {type(metadata).__name__}")
    for name, entry in metadata.state_dict_metadata.items():
        # torch would unpickle anything that is not a tensor.
        if type(entry).__name__ != "TensorStorageMetadata":
            raise ValueError(f"'{name}' is not a tensor")
    for info in metadata.storage_data.values():
        if Path(info.relative_path).name != info.relative_path:
            raise ValueError(f"it names the file {info.relative_path!r}, which is not in the checkpoint's folder")
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"its tensors are transformed by {info.transform_descriptors}, those of ours are not")


def _check_sizes(metadata: Any, folder: Path) -> None:
    """Raise ValueError where the metadata names more bytes than the files have."""
    used: Counter[str] = Counter()
    for info in metadata.storage_data.values():
        if min(info.offset, info.length) < 0:
            raise ValueError(f"it names a negative position in {info.relative_path}")
        used[info.relative_path] += info.length
    for name, length in used.items():
        if length > (has := (folder / name).stat().st_size):
            raise ValueError(f"it names {length:,} bytes of {name}, which has {has:,}")
    stored = {(index.fqn, tuple(index.offset)): info.length for index, info in metadata.storage_data.items()}
    for name, entry in metadata.state_dict_metadata.items():
        kept, values = entry.properties, 0
        dtype = kept.values[0] if isinstance(kept, Record) else kept.dtype
        for chunk in entry.chunks:
            values += (count := math.prod(chunk.sizes))
            if count * dtype.itemsize > stored.get((name, tuple(chunk.offsets)), -1):
                raise ValueError(f"'{name}' has blocks that the files do not hold")
        if math.prod(entry.size) > values:
            raise ValueError(f"'{name}' has {math.prod(entry.size):,} values, its blocks {values:,}")


def open_block(file: IO[bytes], place: Any) -> io.BytesIO:
    """The archive of a tensor's block at `place`, torch's record. ValueError: it unpacks to more than its bytes."""
    file.seek(place.offset)
    block = io.BytesIO(file.read(place.length))
    require_uncompressed(block, place.length)
    block.seek(0)
    return block


def require_same_model(folder: Path, stored: Mapping[str, Any], target: Mapping[str, Tensor], prefix: str) -> None:
    """DamagedCheckpointError unless a model's stored tensors are those of `target`, by name and shape."""
    for name, tensor in target.items():
        entry = stored.get(name)
        if entry is None:
            why = "it is a checkpoint of another model" if prefix == MODEL else "the run keeps no such weights"
            raise DamagedCheckpointError(f"{folder}: has no tensor '{name}'; {why}")
        if tuple(entry.size) != tuple(tensor.shape):
            raise DamagedCheckpointError(f"{folder}: {name} has shape {list(entry.size)}, here {list(tensor.shape)}")
    foreign = [name for name in stored if name.startswith(prefix) and name not in target]
    if foreign:
        raise DamagedCheckpointError(
            f"{folder}: has {len(foreign)} tensors that this model does not have ('{foreign[0]}' first); "
            "it is a checkpoint of another model"
        )

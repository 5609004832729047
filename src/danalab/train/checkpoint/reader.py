"""Reads checkpoints of torch.distributed.checkpoint without running code from them.

torch unpickles `.metadata`, which could call any function. Here only the classes that our checkpoints hold are loaded,
every tensor is read with `weights_only`, and no file outside the checkpoint is opened.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from danalab.train.checkpoint.store import DamagedCheckpointError

METADATA = ".metadata"
ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}  # fmt: skip
"""Module -> names that a metadata file may load, besides torch's dtypes. All of them are plain data."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Load an allowed name."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint holds; nothing of it was run")


class Reader(FileSystemReader):
    """torch's reader of a folder, safe for checkpoints of unknown origin."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's metadata.

        Raises:
            DamagedCheckpointError: the file is not the metadata of a checkpoint of ours; names the reason.
        """
        folder = Path(self.path)
        try:
            with open(folder / METADATA, "rb") as file:
                metadata = _Unpickler(file).load()
            _check(metadata)
        except Exception as error:  # a damaged pickle can fail with anything
            raise DamagedCheckpointError(
                f"{folder}: {METADATA} cannot be read: {error or type(error).__name__}"
            ) from error
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _check(metadata: Any) -> None:
    """Raise ValueError where metadata has another structure than our checkpoints."""
    if not isinstance(metadata, Metadata):
        raise ValueError(f"it holds a {type(metadata).__name__}")
    for name, entry in metadata.state_dict_metadata.items():
        # torch would unpickle anything that is not a tensor.
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"'{name}' is not a tensor")
    for info in metadata.storage_data.values():
        if Path(info.relative_path).name != info.relative_path:
            raise ValueError(f"it names the file {info.relative_path!r}, which is not in the checkpoint's folder")

"""torch.distributed.checkpoint's reader of a folder, safe for checkpoints of unknown origin."""

from pathlib import Path
from typing import IO, Any

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from danalab.train.checkpoint.metadata import open_block, read_metadata


class Reader(FileSystemReader):
    """Loads no code with the metadata, and every tensor with `weights_only`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See `danalab.train.checkpoint.metadata.read_metadata`."""
        metadata: Metadata = read_metadata(Path(self.path), real_classes=True)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        """The bytes of one block; torch would unpack whatever they claim."""
        return open_block(file, sinfo)

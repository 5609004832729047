"""Mirrors metrics.jsonl to TensorBoard, in the run folder's `tensorboard/`."""

from pathlib import Path
from typing import Any

from danalab.errors import MissingExtra
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.run.metrics import scalars


class TensorBoardMirror(Callback):
    """Writes every number of every row; a resumed run hides what the earlier job wrote past the resumed step."""

    name = "tensorboard"

    def __init__(self, folder: Path):
        """Args: folder: destination of the event files.
        Raises:
            MissingExtra: tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401 - fails early, before anything is trained
        except ImportError as error:
            raise MissingExtra("tensorboard", "track", "--tensorboard") from error
        self._folder = folder
        self._writer: Any = None

    @classmethod
    def build(cls, context: CallbackContext) -> "TensorBoardMirror | None":
        """On rank 0, in the run folder's `tensorboard/`."""
        return cls(context.folder / "tensorboard") if context.writes else None

    def on_start(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def on_row(self, row: dict[str, Any]) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

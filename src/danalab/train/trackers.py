"""Mirrors of metrics.jsonl: Weights & Biases, also without a network, and TensorBoard."""

import secrets
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from danalab.errors import UserError, import_extra
from danalab.files import read_state, write_json
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.run.metrics import scalars


@dataclass
class _Identity:
    """The content of wandb.json."""

    id: str


class WandbMirror(Callback):
    """A resumed run keeps its id, and rows that are repeated after a restart replace the old ones.

    Settings that are not given are wandb's own variables ($WANDB_PROJECT, ...).
    """

    name, rank0_only = "wandb", True

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self._library = import_extra("wandb", "--wandb")
        self._run: Any = None

    def on_start(self, step: int) -> None:
        """Connect, or open the offline folder."""
        folder, config = self.context.folder, self.context.spec
        given = {key: getattr(config, f"wandb_{key}") for key in ("project", "entity", "group", "mode")}
        id_file = folder / "wandb.json"
        if not id_file.is_file():
            write_json(id_file, {"id": secrets.token_hex(6)})
        hint = "" if config.wandb_mode == "offline" else "; to log without a connection: --wandb-mode offline"
        try:
            self._run = self._library.init(
                id=read_state(_Identity, id_file).id,
                name=folder.name,
                dir=str(folder),
                config=self.context.spec.as_dict(),
                resume="allow",
                settings=self._library.Settings(silent=True, console="off", init_timeout=60),
                **{key: value for key, value in given.items() if value is not None},
            )
        except (self._library.Error, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--wandb: {reason}{hint}") from error
        self._run.define_metric("*", step_metric="step")

    def on_row(self, row: dict[str, Any]) -> None:
        # An offline run that is resumed would count its own steps from 0 again.
        self._run.log(scalars(row), step=row["step"])

    def on_end(self, summary: dict[str, Any]) -> None:
        self._run.summary.update({f"final/{key}": value for key, value in scalars(summary).items()})

    def close(self) -> None:
        if self._run is not None:
            with redirect_stdout(sys.stderr):  # standard output belongs to --json
                self._run.finish()
            self._run = None


class TensorBoardMirror(Callback):
    """A resumed run hides what the earlier job wrote past the resumed step."""

    name, rank0_only = "tensorboard", True

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self._library = import_extra("torch.utils.tensorboard", "--tensorboard")
        self._writer: Any = None

    def on_start(self, step: int) -> None:
        self._writer = self._library.SummaryWriter(
            str(self.context.folder / "tensorboard"), purge_step=step + 1
        )

    def on_row(self, row: dict[str, Any]) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

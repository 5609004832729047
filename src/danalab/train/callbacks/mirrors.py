"""Mirrors of metrics.jsonl: Weights & Biases (also offline; a resumed run keeps its id) and TensorBoard."""

import logging
import secrets
from typing import Any

from danalab.errors import MissingExtra, UserError
from danalab.files import read_state, write_json
from danalab.train.callbacks.base import Callback, CallbackContext
from danalab.train.run.metrics import scalars
from danalab.train.run.schemas import WandbId

log = logging.getLogger(__name__)


class WandbMirror(Callback):
    """Logs every row at its own step, so that rows repeated after a restart replace the old ones.

    `wandb.json` in the run folder keeps the run's id. Settings that are not given are wandb's own variables
    ($WANDB_PROJECT, ...).
    """

    name = "wandb"

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("wandb", "track", "--wandb") from error
        self._wandb: Any = wandb
        self._run: Any = None

    @classmethod
    def build(cls, context: CallbackContext) -> "WandbMirror | None":
        return cls(context) if context.writes else None

    def on_start(self, step: int) -> None:
        """Connect, or open the offline folder."""
        folder, config = self.context.folder, self.context.spec.config
        given = {key: getattr(config, f"wandb_{key}") for key in ("project", "entity", "group", "mode")}
        try:
            self._run = self._wandb.init(
                id=self._id(),
                name=folder.name,
                dir=str(folder),
                config=config.as_dict(),
                resume="allow",
                settings=self._wandb.Settings(silent=True, console="off", init_timeout=60),
                **{key: value for key, value in given.items() if value is not None},
            )
        except (self._wandb.Error, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--wandb: {reason}; to log without a connection: --wandb-mode offline") from error
        self._run.define_metric("*", step_metric="step")

    def _id(self) -> str:
        file = self.context.folder / "wandb.json"
        if not file.is_file():
            write_json(file, {"id": secrets.token_hex(6)})
        return read_state(WandbId, file)["id"]

    def on_row(self, row: dict[str, Any]) -> None:
        self._run.log({**scalars(row), "step": row["step"]})

    def on_end(self, summary: dict[str, Any]) -> None:
        """Add the summary of the run."""
        self._run.summary.update({f"final/{key}": value for key, value in scalars(summary).items()})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


class TensorBoardMirror(Callback):
    """Writes every number of every row; a resumed run hides what the earlier job wrote past the resumed step."""

    name = "tensorboard"

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401 - fails early, before anything is trained
        except ImportError as error:
            raise MissingExtra("tensorboard", "track", "--tensorboard") from error
        self._writer: Any = None

    @classmethod
    def build(cls, context: CallbackContext) -> "TensorBoardMirror | None":
        return cls(context) if context.writes else None

    def on_start(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.context.folder / "tensorboard"), purge_step=step + 1)

    def on_row(self, row: dict[str, Any]) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(key, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

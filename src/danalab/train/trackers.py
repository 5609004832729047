"""Mirrors of metrics.jsonl: Weights & Biases, Trackio and TensorBoard; the first two also without a network."""

import secrets
import sys
from contextlib import redirect_stdout, suppress
from typing import Any

from danalab.errors import UserError, import_extra
from danalab.files import read_state, write_json
from danalab.train.callbacks.base import CALLBACKS, Callback, CallbackContext
from danalab.train.run.metrics import read_rows, scalars
from danalab.train.run.schemas import RunId


class Mirror(Callback):
    """Sends rows to a tracker; `name` is its flag. Only on the rank that writes."""

    module, end = "", "finish"
    """What is imported before anything is trained; the method that closes a run of the tracker."""

    def __init__(self, context: CallbackContext):
        super().__init__(context)
        self._library = import_extra(self.module, f"--{self.name}")
        self._run: Any = None

    @classmethod
    def build(cls, context: CallbackContext) -> "Mirror | None":
        return cls(context) if context.writes else None

    def _id(self) -> str:
        """An id that the run folder keeps, in NAME.json."""
        file = self.context.folder / f"{self.name}.json"
        if not file.is_file():
            write_json(file, {"id": secrets.token_hex(6)})
        return read_state(RunId, file)["id"]

    def on_row(self, row: dict[str, Any]) -> None:
        self._run.log({**scalars(row), "step": row["step"]})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with redirect_stdout(sys.stderr):  # standard output belongs to --json
                getattr(run, self.end)()


class WandbMirror(Mirror):
    """Rows that are repeated after a restart replace the old ones: a resumed run keeps its id.

    Settings that are not given are wandb's own variables ($WANDB_PROJECT, ...).
    """

    name = module = setting = "wandb"

    def on_start(self, step: int) -> None:
        """Connect, or open the offline folder."""
        folder, config = self.context.folder, self.context.spec
        given = {key: getattr(config, f"wandb_{key}") for key in ("project", "entity", "group", "mode")}
        try:
            self._run = self._library.init(
                id=self._id(),
                name=folder.name,
                dir=str(folder),
                config=self.context.spec.as_dict(),
                resume="allow",
                settings=self._library.Settings(silent=True, console="off", init_timeout=60),
                **{key: value for key, value in given.items() if value is not None},
            )
        except (self._library.Error, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"--wandb: {reason}; to log without a connection: --wandb-mode offline") from error
        self._run.define_metric("*", step_metric="step")

    def on_end(self, summary: dict[str, Any]) -> None:
        self._run.summary.update({f"final/{key}": value for key, value in scalars(summary).items()})


class TrackioMirror(Mirror):
    """Rows of the project danalab, run NAME-ID; a job writes all rows of the run anew, so none is there twice."""

    name = module = setting = "trackio"

    def on_start(self, step: int) -> None:
        """Replace what earlier jobs wrote by the rows of metrics.jsonl."""
        name = f"{self.context.folder.name}-{self._id()}"
        try:
            with redirect_stdout(sys.stderr):
                with suppress(ValueError):  # there is no such project yet
                    for run in self._library.Api().runs("danalab"):
                        if run.name == name:
                            run.delete()
                config = self.context.spec.as_dict()
                self._library.init("danalab", name=name, config=config, embed=False)
                self._run = self._library  # its functions also end the run for its own end of the process
        except OSError as error:
            raise UserError(f"--trackio: {error}; $TRACKIO_DIR is the folder of its files") from error
        for row in read_rows(self.context.folder / "metrics.jsonl"):
            self.on_row(row)

    def on_row(self, row: dict[str, Any]) -> None:
        renamed = {"time": "seconds"}  # its own word for the clock
        self._run.log({renamed.get(k, k): v for k, v in scalars(row).items() if k != "step"}, step=row["step"])


class TensorBoardMirror(Mirror):
    """A resumed run hides what the earlier job wrote past the resumed step."""

    name = setting = "tensorboard"
    module, end = "torch.utils.tensorboard", "close"

    def on_start(self, step: int) -> None:
        self._run = self._library.SummaryWriter(str(self.context.folder / "tensorboard"), purge_step=step + 1)

    def on_row(self, row: dict[str, Any]) -> None:
        for key, value in scalars(row).items():
            self._run.add_scalar(key, value, row["step"])
        self._run.flush()


for mirror in (TensorBoardMirror, WandbMirror, TrackioMirror):
    CALLBACKS.add(mirror.name, mirror)

"""Flags that choose a model to talk to."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from danalab.cli._shared.options import Positional
from danalab.errors import UserError
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.serve.chat_model import ChatModel

BASE_MODEL = (
    "a base model: conversations are plain text (User: ... Assistant: ...); danalab sft teaches it to chat"
)


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    folder: Positional[Path | None] = None
    """Run folder, finished or not."""
    run: Path | None = None
    """Run folder, if it is not the first argument."""

    def chosen_run(self) -> Path | None:
        """The run folder that is given, if any."""
        if self.folder is not None and self.run is not None:
            raise UserError(f"{self.folder} and --run {self.run}: give the run folder once")
        return self.run if self.folder is None else self.folder

    def required_run(self, verb: str) -> Path:
        """The run folder."""
        run = self.chosen_run()
        if run is None:
            raise UserError(f"give a run folder: danalab {verb} RUN")
        return run


@dataclass(frozen=True, kw_only=True)
class ModelFlags(RunFlags):
    from_: Path | None = None
    """Folder in Hugging Face format instead of a run: an export of ours, or a model that danalab import accepts."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    tokenizer: PathText | None = None
    """Name (gpt2, bytes) or path of the tokenizer that made the run's data; default the folder's own."""

    def source(self) -> tuple[Path | None, Path | None]:
        """(run folder, folder in Hugging Face format)."""
        return self.chosen_run(), self.from_

    def open(self, name: str | None = None) -> "ChatModel":
        """The model, of its folder's name by default; UserError: none is given, two are, or it cannot be read."""
        from danalab.serve.chat_model import open_chat_model

        run, folder = self.source()
        return open_chat_model(run, folder, step=self.step, tokenizer=self.tokenizer, name=name)

"""Flags that choose a model to talk to."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from danalab.cli._shared.options import Positional
from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.serve import ChatModel

BASE_MODEL = "a base model: conversations are plain text (User: ... Assistant: ...); danalab sft teaches it to chat"


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    folder: Positional[Path | None] = None
    """Run folder, finished or not."""
    run: Path | None = None
    """Run folder, in place of the first argument."""
    from_: Path | None = None
    """Folder in Hugging Face format in place of a run: an export of ours, or a model that danalab import accepts."""
    step: int | None = None
    """Checkpoint [steps]; default the newest that verifies."""
    tokenizer: str | None = None
    """Name (gpt2, bytes) or path of the tokenizer that made the run's data; default the folder's own."""

    def source(self) -> tuple[Path | None, Path | None]:
        """(run folder, folder in Hugging Face format)."""
        return chosen_run(self.folder, self.run), self.from_

    def open(self, name: str | None = None) -> "ChatModel":
        """The model.

        Args: name: default that of the folder.
        Raises:
            UserError: no model is given, two are, or it cannot be read.
        """
        from danalab.serve import open_chat_model

        run, folder = self.source()
        return open_chat_model(run, folder, step=self.step, tokenizer=self.tokenizer, name=name)


def chosen_run(positional: Path | None, flag: Path | None) -> Path | None:
    """The one of the two that was given, or None."""
    if positional is not None and flag is not None:
        raise UserError(f"{positional} and --run {flag}: give the run folder once")
    return flag if positional is None else positional


def required_run(positional: Path | None, flag: Path | None, verb: str) -> Path:
    """As `chosen_run`."""
    run = chosen_run(positional, flag)
    if run is None:
        raise UserError(f"give a run folder: danalab {verb} RUN")
    return run

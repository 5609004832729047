"""Flags that choose a model to talk to."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from danalab.train.config.flags import PathText, Positional, setting

if TYPE_CHECKING:
    from danalab.serve.chat_model import ChatModel

BASE_MODEL = (
    "a base model: conversations are plain text (User: ... Assistant: ...); danalab sft teaches it to chat"
)


def stages_of(folder: Path) -> list[Path]:
    """The runs of a speedrun folder, in their order; any other folder as it is."""
    from danalab.post.settings import STAGES

    if not (folder / "speedrun.json").is_file():
        return [folder]
    return [folder / stage for stage in STAGES if (folder / stage / "config.json").is_file()] or [folder]


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    run: Positional[Path | None] = setting(None, "Run folder, finished or not; also as --run.")
    from_: Path | None = setting(
        None,
        "Folder in Hugging Face format instead of a run: an export of ours, or a model that danalab "
        "import accepts.",
    )
    step: int | None = setting(None, "Checkpoint [steps]; default the newest that verifies.")
    tokenizer: PathText | None = setting(
        None,
        "Name (gpt2, bytes) or path of the tokenizer that made the run's data; default the folder's own.",
    )

    def open(self, name: str | None = None) -> "ChatModel":
        """The model, of its folder's name by default; UserError: none is given, two are, or it cannot be read."""
        from danalab.serve.chat_model import open_chat_model

        run = self.run and stages_of(self.run)[-1]
        return open_chat_model(run, self.from_, step=self.step, tokenizer=self.tokenizer, name=name)

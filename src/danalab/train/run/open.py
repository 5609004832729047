"""Read-only access to a run folder, finished or not: configuration, metrics, model, tokenizer."""

import logging
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.train.checkpoint.store import read_meta, verify
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows

if TYPE_CHECKING:
    import torch

    from danalab.data.tokenizers import Tokenizer
    from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model with the weights of a checkpoint."""

    model: "Decoder"
    step: int


class Run:
    """One run folder."""

    def __init__(self, path: str | os.PathLike[str]):
        """Use `open_run`."""
        self.folder = RunFolder(path)
        self.path = self.folder.path
        self.config: dict[str, Any] = self.folder.read_config()

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None while the run has not ended."""
        return self.folder.read_summary()

    @property
    def model_config(self) -> ModelConfig:
        """The shape of the run's model."""
        if "model" not in self.config:
            raise UserError(f"{self.folder.config_file}: malformed: model is missing")
        return ModelConfig.from_dict(self.config["model"], self.folder.config_file)

    def metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.folder.metrics_file)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The run's tokenizer; UserError where it has none."""
        from danalab.data.tokenizers import load_tokenizer

        if not self.folder.tokenizer_folder.is_dir():
            raise UserError(
                f"{self.path}: the run has no tokenizer; give its own: --tokenizer gpt2, or a path"
            )
        return load_tokenizer(self.folder.tokenizer_folder)

    def load_model(
        self, step: int | None = None, device: "torch.device | str" = "cpu", *, prefix: str = "model."
    ) -> LoadedModel:
        """The model at `step`, or at the newest checkpoint that verifies (others are logged).

        Its weights have the `prefix` in the checkpoint; "average." is the average of a run with `--average`. UserError:
        no such checkpoint, or it is damaged.
        """
        from danalab.models import build_model
        from danalab.train.checkpoint import tensors

        checkpoint = self.folder.store.newest() if step is None else self.folder.store.path(step)
        if step is not None:
            if step not in self.folder.store.steps():
                have = ", ".join(map(str, self.folder.store.steps())) or "none"
                raise UserError(f"{self.path}: no checkpoint of step {step}; there are: {have}")
            verify(checkpoint)
        model = build_model(self.model_config, device=device)
        tensors.read(checkpoint, model, prefix=prefix)
        return LoadedModel(model, read_meta(checkpoint)["step"])


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder for reading; UserError if it is not one."""
    return Run(path)

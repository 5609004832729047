"""The start of a stage: a run whose tokenizer and vocabulary have the special tokens of conversations."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from danalab.chat.conversations import ChatFormat, extend_tokenizer, extend_vocabulary
from danalab.data.tokenizers.base import padded
from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.train.run.exchange import write_weights
from danalab.train.run.open import Run


def with_vocabulary(base: Run, run_dir: Path) -> tuple[Path, ModelConfig, Path]:
    """(weights to start from, their model, folder of the tokenizer to extend).

    They are the base run's own where its model has rows for the special tokens. Otherwise a model with more rows is
    written to `run_dir`/base, once; any number of processes may do so at the same time.

    Raises:
        UserError: the base run has no tokenizer.
    """
    if not base.folder.tokenizer_folder.is_dir():
        raise UserError(f"{base.path}: the run has no tokenizer, so it cannot learn from conversations")
    n_ids = ChatFormat(extend_tokenizer(base.tokenizer)).n_ids
    model = base.model_config
    if model.vocab_size >= n_ids:
        return base.path, model, base.folder.tokenizer_folder
    target = run_dir / "base"
    if not target.is_dir():
        run_dir.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=run_dir, prefix=".base-"))
        write_weights(extend_vocabulary(base.load_model().model, n_ids), temporary)
        try:
            os.rename(temporary, target)
        except OSError:  # another process was first
            shutil.rmtree(temporary)
    return target, replace(model, vocab_size=padded(n_ids)), base.folder.tokenizer_folder

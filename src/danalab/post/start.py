"""The start of a stage: a run whose tokenizer and vocabulary have the special tokens of conversations."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import ChatFormat, missing_specials
from danalab.data.tokenizers.base import Tokenizer, padded
from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.optim import optimizer_spec
from danalab.train.config.sections.optimizer import OptimizerSettings
from danalab.train.run.exchange import write_weights
from danalab.train.run.open import Run

if TYPE_CHECKING:
    from danalab.models.decoder import Decoder

log = logging.getLogger(__name__)


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


def optimizer_of(flags: Any, base: Run) -> dict[str, Any]:
    """The optimizer with its settings and the learning rate: those of the base run where it is the same one."""
    theirs = base.config["config"]
    known = theirs.get("opt") if base.config.get("plan") else None
    opt = flags.opt or known or OptimizerSettings.opt
    settings: dict[str, Any] = {"opt": opt}
    same = known is not None and optimizer_spec(opt).name == optimizer_spec(known).name
    for field in fields(OptimizerSettings):
        if same and field.name not in _NOT_TAKEN and getattr(flags, field.name) == _default_of(field.name):
            settings[field.name] = theirs[field.name]
    if flags.lr is None and same:
        settings["lr"] = flags.lr_fraction * theirs["lr"]
    elif flags.lr is None:
        settings["lr_multiplier"] = flags.lr_fraction * flags.lr_multiplier
    return settings


_NOT_TAKEN = ("opt", "lr", "lr_multiplier", "weight_decay", "wd_ts", "wd_ts_divisor", "rules")
"""Settings of the optimizer that follow from this run's length, not from the base run."""


def _default_of(name: str) -> Any:
    return getattr(OptimizerSettings(), name)


def extend_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with all special tokens of conversations; the ids of its own tokens stay.

    Raises:
        UserError: a kind of tokenizer that cannot be extended.
    """
    missing = missing_specials(tokenizer)
    if not missing:
        return tokenizer
    from tokenizers import Tokenizer as Engine

    from danalab.data.tokenizers import BpeTokenizer

    if not isinstance(tokenizer, BpeTokenizer):
        raise UserError(f"tokenizer {tokenizer.name}: has no special token {missing[0]}, and none can be added")
    engine = Engine.from_str(tokenizer.to_json())
    engine.add_special_tokens(missing)
    extended = BpeTokenizer(engine, tokenizer.name)
    log.info(
        "tokenizer %s has no marks of conversations: %d special tokens are added, ids %d to %d",
        tokenizer.name, len(missing), tokenizer.n_tokens, extended.n_tokens - 1,
    )  # fmt: skip
    return extended


def extend_vocabulary(model: Decoder, n_ids: int) -> Decoder:
    """A model with rows for at least `n_ids` token ids; the same model where it has them.

    New rows of the embedding and of the head are the mean of the others, so that a new token is as likely as an average
    one and no logit is large (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models").
    """
    if model.config.vocab_size >= n_ids:
        return model
    from dataclasses import replace

    import torch

    from danalab.models import build_model

    old = model.config.vocab_size
    larger = build_model(replace(model.config, vocab_size=padded(n_ids)), device=model.head_weight.device)
    target = larger.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            target[name][: len(value)].copy_(value) if value.ndim else target[name].copy_(value)
            if value.ndim and len(target[name]) > len(value):
                target[name][old:] = value.mean(0)
    log.info("the model has %d token ids in place of %d; new rows are the mean of the others", padded(n_ids), old)
    return larger

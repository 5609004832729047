"""`danalab eval`: a run's model on every window of a split."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.data import open_data
from danalab.data.open import is_there
from danalab.errors import UserError
from danalab.models.layers.precision import onednn_products
from danalab.train.config.run_spec import recorded_dtype
from danalab.train.evaluation.evaluator import PositionLoss, ValidationLoss
from danalab.train.run.open import open_run
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device


@dataclass(frozen=True)
class RunEvaluation:
    """The result."""

    step: int
    split: str
    loss: float
    """Cross-entropy [nats a token]."""
    perplexity: float
    bpb: float | None
    """Bits per byte."""
    accuracy: float
    """Share of the targets that are the most likely token."""
    tokens: int
    by_position: tuple[PositionLoss, ...]
    """The loss by position in the window."""


def evaluate_run(
    folder: str | Path,
    *,
    step: int | None = None,
    split: str = "val",
    data: str | Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
) -> RunEvaluation:
    """Evaluate a checkpoint on a whole split, in the number format of its training.

    Raises:
        UserError: no such run, checkpoint, data or split; or the data's tokens are not the model's; no batch.
    """
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: must be at least 1")
    run = open_run(folder)
    config = run.config["config"]
    stage = run.config.get("stage", "pretraining")
    if data is None and stage != "pretraining":
        raise UserError(
            f"{folder}: a run of {stage} has conversations or tasks for data, no split of text; --tasks scores its "
            "answers, --data FOLDER takes a data set"
        )
    dataset = open_data(data or _data_of(run.config, folder), split=split)
    chosen = choose_device(device)
    loaded = run.load_model(step, chosen)
    dataset.check_vocab(loaded.model.config.vocab_size)
    if config.get("document_mask"):
        loaded.model.document_token = dataset.eos_id
    autocast = autocast_context(autocast_dtype(recorded_dtype(run.config), chosen), chosen)
    try:
        token_bytes = run.tokenizer.token_bytes() if data is None else dataset.token_bytes
    except UserError:
        token_bytes = None
    evaluator = ValidationLoss(
        dataset.sequential(config["seq_len"]),
        token_bytes,
        batch_size=batch_size or config["batch_size"],
        n_fixed=0,
        autocast=autocast,
        device=chosen,
    )
    with onednn_products(enabled=config.get("onednn", True) and chosen.type == "cpu"):
        result = evaluator.full(loaded.model)
    assert result is not None
    perplexity = math.exp(min(result.loss, 700.0))
    return RunEvaluation(
        loaded.step, split, result.loss, perplexity, result.bpb, result.accuracy, result.tokens, result.by_position
    )


def _data_of(record: dict[str, Any], folder: str | Path) -> str:
    """Where the data of a run are: the recorded place, or, if run and data moved, that which its `--data` names now."""
    if "dataset" not in record:
        raise UserError(f"{folder}: the model was imported, without data; give --data")
    recorded, named = record["dataset"], record["config"]["data"]
    if is_there(recorded["path"]):
        return recorded["path"]
    if is_there(named) and open_data(named).fingerprint == recorded["fingerprint"]:
        return named
    raise UserError(f"{folder}: its data are no longer at {recorded['path']}; give --data")

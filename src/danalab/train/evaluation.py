"""Validation: pure cross-entropy in nats/token, and bits per byte, over windows that never change.

    val/loss = sum of nats / targets         val/bpb = sum of nats on text / (ln 2 x bytes of the targets)
    val/accuracy = targets that are the most likely token / targets

Special tokens (end of document) have no bytes and do not count in bits per byte, as in the literature. Regularisers are
not included. The windows depend neither on the micro-batch nor on the number of ranks; sums are in float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from danalab.data import open_data
from danalab.data.dataset import Dataset
from danalab.data.open import is_there
from danalab.data.tokenizers import Tokenizer
from danalab.errors import UserError
from danalab.train.parallel.world import World
from danalab.train.run.open import Run, open_run
from danalab.train.step.loss import IGNORED
from danalab.train.system.device import autocast_context, autocast_dtype, choose_device


@dataclass(frozen=True)
class ValidationResult:
    """The result of one pass."""

    loss: float
    """Cross-entropy [nats/token]."""
    bpb: float | None
    """Bits per byte; None where the bytes of the tokens are unknown."""
    tokens: int
    """Number of targets."""
    accuracy: float = math.nan
    """Share of the targets that are the model's most likely token."""
    perplexity: float = math.nan
    step: int | None = None
    """That of the checkpoint."""
    split: str | None = None


class ValidationLoss:
    """Cross-entropy of a model on the windows of a split; an `Evaluator` of the trainer, whose ranks share the work.

    Args:
        windows: `len(windows)` and `windows[i:j]` -> (inputs, targets), int64 [j - i, length].
        token_bytes: raw bytes of each id, 0 for specials; None: unknown.
        batch_size: sequences at a time on one rank; changes speed and memory only.
        n_fixed, n_final: windows, evenly spread, of an evaluation and of the last one; 0, or more than there are: all.
    """

    def __init__(
        self,
        windows: Any,
        token_bytes: np.ndarray | None,
        *,
        batch_size: int,
        n_fixed: int,
        n_final: int = 0,
        autocast: Callable[[], Any],
        device: torch.device,
        world: World | None = None,
    ):
        self._windows = windows
        self._bytes = None if token_bytes is None else torch.from_numpy(np.asarray(token_bytes))
        self._batch_size, self._autocast, self._device = batch_size, autocast, device
        self._world = world or World()
        self._total = len(windows)
        self.n_fixed = min(n_fixed or self._total, self._total)
        self.n_final = min(n_final or self._total, self._total)
        self._last: tuple[int, int, ValidationResult] | None = None

    def evaluate(
        self, model: nn.Module, step: int, should_stop: Callable[[], bool], *, final: bool
    ) -> dict[str, float | None] | None:
        """val/loss, val/bpb, val/accuracy; of the final set also val/tokens (targets) and val/share of the split."""
        count = self.n_final if final else self.n_fixed
        if self._last is not None and self._last[:2] == (step, count):
            result: ValidationResult | None = self._last[2]
        else:
            result = self.spread(model, count, should_stop)
        if result is None:
            return None
        self._last = step, count, result
        more = {"val/tokens": result.tokens, "val/share": self.n_final / self._total} if final else {}
        return {"val/loss": result.loss, "val/bpb": result.bpb, "val/accuracy": result.accuracy, **more}

    def full(self, model: nn.Module, should_stop: Callable[[], bool] = bool) -> ValidationResult | None:
        """Evaluate on every window of the split."""
        return self.spread(model, self._total, should_stop)

    @torch.no_grad()
    def spread(
        self, model: nn.Module, count: int, should_stop: Callable[[], bool] = bool
    ) -> ValidationResult | None:
        """Evaluate on `count` windows, evenly spread over the split."""
        world, size = self._world, self._batch_size
        was_training = model.training
        model.eval()
        try:
            nats = torch.zeros((), dtype=torch.float64, device=self._device)
            text_nats, right = torch.zeros_like(nats), torch.zeros_like(nats)
            tokens = n_bytes = 0
            for start in range(0, count, size * world.dp_size):
                if should_stop():
                    return None
                # A rank without windows takes part, since the others may need its shard of the weights.
                first = start + world.dp_rank * size
                ends = (first, min(first + size, count)) if first < count else (0, 1)
                inputs, targets = self._batch(*ends, count)
                if first >= count:
                    targets = torch.full_like(targets, IGNORED)
                losses, correct = self._losses(model, inputs, targets)
                valid = targets != IGNORED
                right += (correct & valid.to(self._device)).sum()
                tokens += int(valid.sum())
                nats += losses.sum()
                if self._bytes is not None:
                    lengths = self._bytes[targets.clamp(min=0)].where(valid, 0)
                    n_bytes += int(lengths.sum())
                    text_nats += losses.where((lengths > 0).to(self._device), 0).sum()
        finally:
            model.train(was_training)
        here = [float(nats), float(text_nats), float(tokens), float(n_bytes), float(right)]
        all_nats, all_text, all_tokens, all_bytes, all_right = world.sums(here)
        bpb = all_text / (math.log(2) * all_bytes) if all_bytes else None
        n_targets = max(all_tokens, 1)
        return ValidationResult(all_nats / n_targets, bpb, int(all_tokens), all_right / n_targets)

    def _batch(self, start: int, end: int, count: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of some of `count` windows that are spread over the split."""
        if count == self._total:
            return self._windows[start:end]
        rows = [self._windows[i : i + 1] for i in (n * self._total // count for n in range(start, end))]
        return torch.cat([inputs for inputs, _ in rows]), torch.cat([targets for _, targets in rows])

    def _losses(self, model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(cross-entropy of each target, float64, 0 where ignored; whether it is the most likely token)."""
        inputs, targets = inputs.to(self._device), targets.to(self._device)
        correct = torch.zeros_like(targets, dtype=torch.bool)
        with self._autocast():
            losses = model.token_losses(inputs, targets, ignore_index=IGNORED, correct=correct)
        return losses.double(), correct


def evaluate_run(
    folder: str | Path,
    *,
    step: int | None = None,
    split: str = "val",
    data: str | Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
) -> ValidationResult:
    """Evaluate a checkpoint on a whole split, in the number format of its training.

    UserError: no such run, checkpoint, data or split; or the data's tokens are not the model's; no batch.
    """
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: must be at least 1")
    run = open_run(folder)
    config = run.config["config"]
    stage = run.config.get("stage", "pretraining")
    if data is None and stage != "pretraining":
        raise UserError(
            f"{folder}: a run of {stage} has no split of text; --tasks scores answers, --data FOLDER takes a data set"
        )
    dataset = open_data(data or _data_of(run.config, folder), split=split)
    chosen = choose_device(device)
    loaded = run.load_model(step, chosen)
    dataset.check_vocab(loaded.model.config.vocab_size)
    ours, theirs = _tokenizer_of(run), _tokenizer_of(dataset)
    if data is not None and ours is not None and theirs is not None:
        dataset.check_tokenizer(ours, f"--data {data}")
    if config.get("document_mask"):
        loaded.model.document_token = dataset.eos_id
    autocast = autocast_context(autocast_dtype(run.config["config"]["dtype"], chosen), chosen)
    tokenizer = ours if data is None else theirs
    evaluator = ValidationLoss(
        dataset.sequential(config["seq_len"]),
        None if tokenizer is None else tokenizer.token_bytes(),
        batch_size=batch_size or config["batch_size"],
        n_fixed=0,
        autocast=autocast,
        device=chosen,
    )
    result = evaluator.full(loaded.model)
    assert result is not None
    perplexity = math.exp(min(result.loss, 700.0))
    return replace(result, perplexity=perplexity, step=loaded.step, split=split)


def _tokenizer_of(holder: Run | Dataset) -> Tokenizer | None:
    try:
        return holder.tokenizer
    except UserError:
        return None


def _data_of(record: dict[str, Any], folder: str | Path) -> str:
    """The place of a run's data: the recorded one, or, if run and data moved, that which its `--data` names now."""
    if "dataset" not in record:
        raise UserError(f"{folder}: the model was imported, without data; give --data")
    recorded, named = record["dataset"], record["config"]["data"]
    if is_there(recorded["path"]):
        return recorded["path"]
    if is_there(named) and open_data(named).fingerprint == recorded["fingerprint"]:
        return named
    raise UserError(f"{folder}: its data are no longer at {recorded['path']}; give --data")

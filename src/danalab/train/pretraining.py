"""Pre-training as a stage: windows of a token stream, cross-entropy, validation loss on a held-out split."""

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from danalab.data import Dataset, open_data
from danalab.data.open import is_there, vocabulary_of
from danalab.data.order.batches import Batches
from danalab.data.vocabulary import Vocabulary
from danalab.train.config.train_config import FIXED_BATCH, TrainConfig
from danalab.train.evaluation import ValidationLoss
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder, keep_tokenizer
from danalab.train.stage import BatchSource, Consumption, Stage, StageKind
from danalab.train.step.loss import CrossEntropy, RouterBalance, TrainingBatch

log = logging.getLogger(__name__)


class TokenBatches(BatchSource):
    """Batches of a dataset by step, which a thread assembles ahead (pinned for a GPU); `description` is for reports."""

    def __init__(self, batches: Batches, *, pin_memory: bool, **description: Any):
        self._batches, self._pin_memory, self._description = batches, pin_memory, description

    def iterate(self, start_step: int = 0) -> Generator[TrainingBatch]:
        with closing(
            self._batches.iterate(start_step, pin_memory=self._pin_memory)
        ) as batches:  # ends the thread
            for inputs, targets in batches:
                yield TrainingBatch(inputs, targets)

    def describe(self, step: int) -> dict[str, Any]:
        """Numbers of this rank's windows, the seed and the length."""
        return {"windows": [int(window) for window in self._batches.windows(step)], **self._description}


def pretraining(
    spec: TrainConfig,
    dataset: Dataset,
    folder: RunFolder,
    world: World,
    device: torch.device,
    autocast: Callable[[], Any],
) -> Stage:
    """The stage of `danalab train`. UserError: no validation split, or too few tokens."""
    batches = dataset.batches(
        seed=spec.data_seed,
        global_batch=spec.global_batch,
        seq_len=spec.seq_len,
        rank=world.dp_rank,
        world_size=world.dp_size,
    )
    val = dataset.open_split("val")
    val.check_vocab(spec.model.vocab_size)
    validation = ValidationLoss(
        val.sequential(spec.seq_len),
        keep_tokenizer(val, folder, world),
        batch_size=spec.batch_size,
        n_fixed=evaluation_windows(spec, "eval_batches"),
        n_final=evaluation_windows(spec, "final_eval_batches"),
        autocast=autocast,
        device=device,
        world=World() if world.size == 1 else world,  # a worker that steps alone evaluates alone
    )
    balance = None if spec.model.sparsity is None else RouterBalance(spec.model, device)
    return Stage(
        TokenBatches(
            batches, pin_memory=device.type == "cuda", data_seed=spec.data_seed, seq_len=spec.seq_len
        ),
        CrossEntropy(spec.z_loss, spec.hoyer_loss, balance),
        Consumption(spec.tokens, spec.flops, spec.optimizer_flops),
        [validation],
    )


def evaluation_windows(spec: TrainConfig, name: str) -> int:
    """Windows of an evaluation: where their number is automatic, no more than the run trains on."""
    windows = (getattr(spec, name) or 0) * FIXED_BATCH
    return min(windows, spec.iterations * spec.global_batch) if spec.automatic(name) else windows


def _open(config: TrainConfig) -> Dataset:
    return open_data(config.source, config.tokenizer)


def _expected_vocabulary(config: TrainConfig) -> Vocabulary | None:
    if is_there(config.source, config.tokenizer):
        return None
    expected = vocabulary_of(config.source, config.tokenizer)
    # The padding counts for the default size only.
    return replace(expected, least_vocab_size=1)


PRETRAINING = StageKind("pretraining", _open, pretraining, expected_vocabulary=_expected_vocabulary)
"""`danalab train`."""

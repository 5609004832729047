"""A stage of training: batches, loss, evaluation. Pre-training is one (`danalab.train.pretraining`).

Trainer = loop, optimizer, checkpoints, metrics          Stage = what differs between pre-training, SFT and RL
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn

from danalab.data import Dataset
from danalab.data.vocabulary import Vocabulary
from danalab.tables import load
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.step.loss import Loss, TrainingBatch


class BatchSource:
    """Batches of a run; asked for a step's after the update before it, so a source may sample from the model.

    A source whose batches depend on the step alone may read ahead in `iterate`.
    """

    def attach(self, model: nn.Module) -> None:
        """Called once, before the first batch, with the model that is trained; for on-policy sources."""

    def batch(self, step: int) -> TrainingBatch:
        """This rank's part of the batch of a 0-based step."""
        raise NotImplementedError

    def iterate(self, start_step: int = 0) -> Iterator[TrainingBatch]:
        """Batches from a step on, each made when it is asked for. A generator is closed when training ends."""
        return (self.batch(step) for step in count(start_step))

    def describe(self, step: int) -> dict[str, Any]:
        """Plain values that identify the batch of a step, for a report about it."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint: the state after the last batch that was used."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""


@dataclass(frozen=True)
class Consumption:
    """Totals after a number of steps."""

    tokens: Callable[[int], int]
    flops: Callable[[int], float]
    """Of the model."""
    optimizer_flops: Callable[[int], float | None] = lambda steps: None
    """Of the optimizer's own matrix products; None: not known."""


@dataclass(frozen=True)
class Stage:
    """What a kind of training brings to the trainer."""

    batches: BatchSource
    loss: Loss
    consumption: Consumption
    evaluators: Sequence[Any] = ()
    """Each has `evaluate(model, step, should_stop, *, final)`: metrics by name (of a full pass at the end), or None
    where `should_stop()` became true. Collective."""


MakeStage = Callable[[TrainConfig, Dataset, RunFolder, World, torch.device, Callable[[], Any]], Stage]
"""(spec, data, run folder, ranks, device, autocast) -> stage; the last makes the context of forward computations."""


@dataclass(frozen=True)
class StageKind:
    """A kind of training with run folders of its own, e.g. that of `danalab train` or `danalab sft`."""

    name: str
    """Recorded in config.json."""
    open_data: Callable[[Any], Dataset]
    """Opens the data of a configuration, on each rank."""
    make: MakeStage
    prepare: Callable[[Any], None] = lambda config: None
    """Called on rank 0 of a job that holds the run folder, before it looks for a checkpoint to start from."""
    expected_vocabulary: Callable[[Any], Vocabulary | None] = lambda config: None
    """The vocabulary that data will have which `open_data` would have to prepare; None for data that are there."""


def stage_kind(config: TrainConfig) -> StageKind:
    """The kind of training that a configuration is for, by its class."""
    return load(config.stage)

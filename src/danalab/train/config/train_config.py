"""The configuration of a training run: all sections together. None means automatic: `resolve` fills it in.

Needs no torch; the docstring below each field is its help on the command line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from danalab.train.config.original_flags import translate
from danalab.train.config.sections.batch import BatchSettings
from danalab.train.config.sections.checkpoint import CheckpointSettings
from danalab.train.config.sections.data import DataSettings
from danalab.train.config.sections.evaluation import EvaluationSettings, TrackingSettings
from danalab.train.config.sections.execution import ExecutionSettings
from danalab.train.config.sections.job import JobSettings
from danalab.train.config.sections.model import ModelSettings, StartSettings
from danalab.train.config.sections.optimizer import LossSettings, OptimizerSettings
from danalab.train.config.sections.parallel import ParallelSettings
from danalab.train.config.sections.schedule import ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class RunSettings(
    JobSettings,
    TrackingSettings,
    EvaluationSettings,
    CheckpointSettings,
    ParallelSettings,
    ExecutionSettings,
    LossSettings,
    ScheduleSettings,
    OptimizerSettings,
    BatchSettings,
):
    """Settings of every stage of training, whatever its model and data."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings, DataSettings, StartSettings, ModelSettings):
    """Settings of `danalab train`; fields come from the last section to the first.

    Raises:
        UserError: a setting out of its range. What only shows together with the data or the scaling rules is refused
            by `danalab.train.config.resolve`.
    """

    stage: ClassVar[str] = "danalab.train.pretraining:PRETRAINING"
    """The `StageKind` that trains by these settings, as MODULE:NAME."""

    @staticmethod
    def translate_words(words: Sequence[str]) -> list[str]:
        """Words of a command line, with flags of the original code as ours."""
        return translate(words)

"""Settings of mid-training and supervised fine-tuning: what differs from pre-training. Need no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Lt

from danalab.train.config.fields import Count, Natural, Positive, Section, setting
from danalab.train.config.train_config import RunSettings, TrainConfig

Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(Section):
    """Settings that a run on conversations records beside those of `TrainConfig`."""

    title: ClassVar[str] = "conversations"

    val_data: tuple[str, ...] = setting((), kind="data")
    """Conversations for validation, in the form of --data; default a share of the others."""
    val_share: Share = setting(0.05, kind="data")
    """Without --val-data: share of the conversations that is kept for validation, at least one."""


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(Section):
    """Text beside the conversations."""

    title: ClassVar[str] = "conversations"

    replay: str | None = setting(None, kind="data")
    """Data set of plain text that is mixed in, in the form of danalab train --data, with the tokenizer of the run."""
    replay_share: Share = 0.3
    """Share of the rows that are from --replay."""


@dataclass(frozen=True, kw_only=True)
class StartingRun(Section):
    """The run and the conversations."""

    title: ClassVar[str] = "conversations"

    run: Path = setting(main=True)
    """The run to start from: a base run, or an earlier stage."""
    data: tuple[str, ...] = setting((), main=True)
    """Conversations: files (FILE.jsonl), tasks (NAME or NAME:KEY=VALUE,...), or several of them."""
    seq_len: Annotated[int, Ge(2)] | None = setting(None, main=True)
    """Length of a row [tokens]; default and limit: the run's context, which the model keeps."""
    data_seed: Natural = 1337
    """Seed of the order of the rows."""
    lr_fraction: Positive = setting(0.8, main=True)
    """Peak learning rate, where --lr isn't given: this share of the run's, or of the fitted law's for another --opt."""
    init_optimizer: bool = False
    """Also take over the optimizer's moments and step counts."""


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RunSettings, ConversationSettings, StartingRun):
    """Flags that mid-training and fine-tuning share; model and tokenizer are those of --run."""

    run_dir: Path | None = setting(None, kind="job", main=True, aliases=("output-dir",))
    """The run folder; default RUN-sft or RUN-mid, beside the run."""
    opt: str = setting("", main=True)
    """Optimizer; default the run's, with its settings."""
    lr: Positive | None = setting(None, main=True)
    """Peak learning rate; default --lr-fraction of the run's."""
    iterations: Count | None = setting(None, main=True)
    """Length of the run [steps]; default one pass over the conversations."""
    batch_size: Count | None = setting(None, kind="execution", main=True)
    """Sequences of one micro-batch on one rank; default the run's, or a divisor of the global batch."""
    epochs: Positive | None = setting(None, kind="input", main=True)
    """Length of the run in passes over the conversations; default 1, without --iterations."""
    global_batch: Count | None = setting(None, main=True)
    """Sequences in a step; default the run's, or less where the rows are fewer."""
    weight_decay: float | None = setting(0.0, main=True)
    """Weight decay."""
    scheduler: str = "wsd"
    """Learning-rate schedule: constant, then linear to 0; or another of danalab train."""
    z_loss: float = 0.0
    """Weight of mean(logsumexp^2) in the minimised loss, over all positions, padding included."""


@dataclass(frozen=True, kw_only=True)
class SftFlags(FinetuneSettings):
    """Flags of `danalab sft`."""

    fract_decay: float | None = 0.5
    """wsd: share of the run in which the rate falls to 0."""


@dataclass(frozen=True, kw_only=True)
class MidFlags(FinetuneSettings, ReplaySettings):
    """Flags of `danalab mid`."""

    fract_decay: float | None = 0.2
    """wsd: share of the run in which the rate falls to 0."""
    lr_fraction: Positive = setting(1.0, main=True)
    """Peak learning rate, where --lr isn't given: this share of the run's, or of the fitted law's for another --opt."""


@dataclass(frozen=True, kw_only=True)
class SftConfig(ConversationSettings, TrainConfig):
    """A resolved fine-tuning; `data` has a line for each word of --data, `tokenizer` is the folder of the run's."""

    stage: ClassVar[str] = "danalab.post.sft:SFT"


@dataclass(frozen=True, kw_only=True)
class MidConfig(ReplaySettings, ConversationSettings, TrainConfig):
    """A resolved mid-training; see `SftConfig`."""

    stage: ClassVar[str] = "danalab.post.sft:MID"

"""Settings of mid-training, supervised fine-tuning and reinforcement learning, as flags. Need no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError
from danalab.post.policy_losses import OBJECTIVES
from danalab.train.config.fields import (
    Auto,
    Count,
    Natural,
    NonNegative,
    PathText,
    Positive,
    Section,
    setting,
)
from danalab.train.config.train_config import RunSettings, TrainConfig

STAGES = ("base", "mid", "sft", "rl")
"""The stages of a chat model, in their order."""
Share = Annotated[float, Gt(0), Lt(1)]
if TYPE_CHECKING:
    PolicyLossName = str
else:
    PolicyLossName = Literal[tuple(OBJECTIVES)]


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(Section):
    """Settings that a run on conversations records beside those of `TrainConfig`."""

    title: ClassVar[str] = "conversations"

    val_data: tuple[PathText, ...] = setting((), kind="data")
    """Conversations for validation, in the form of --data; default a share of the others."""
    val_share: Share = setting(0.05, kind="data")
    """Share of the conversations that is kept for validation, at least one; without --val-data."""
    replay: PathText | None = setting(None, kind="data")
    """Data set of plain text that is mixed in, in the form of danalab train --data, with the tokenizer of the run."""
    replay_share: Share = 0.3
    """Share of the rows that are from --replay."""


@dataclass(frozen=True, kw_only=True)
class StartingRun(Section):
    """The run and the conversations."""

    title: ClassVar[str] = "conversations"

    run: Path = setting(main=True)
    """The run to start from: a base run, or an earlier stage."""
    data: tuple[PathText, ...] = setting((), main=True)
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
class SftFlags(RunSettings, ConversationSettings, StartingRun):
    """Flags of `danalab sft`; model and tokenizer are those of --run."""

    run_dir: Auto[Path] = setting(None, kind="job", main=True, aliases=("output-dir",))
    """The run folder; default RUN-sft or RUN-mid, beside the run."""
    opt: PathText = setting("", main=True)
    """Optimizer; default the run's, with its settings."""
    lr: Auto[Positive] = setting(None, main=True)
    """Peak learning rate; default --lr-fraction of the run's."""
    iterations: Auto[Count] = setting(None, main=True)
    """Length of the run [steps]; default one pass over the conversations."""
    batch_size: Auto[Count] = setting(None, kind="execution", main=True)
    """Sequences of one micro-batch on one rank; default the run's, or a divisor of the global batch."""
    epochs: Positive | None = setting(None, kind="input", main=True)
    """Length of the run in passes over the conversations; default 1, without --iterations."""
    global_batch: Auto[Count] = setting(None, main=True)
    """Sequences in a step; default the run's, or less where the rows are fewer."""
    weight_decay: Auto[float] = setting(0.0, main=True)
    """Weight decay."""
    scheduler: str = "wsd"
    """Learning-rate schedule: constant, then linear to 0; or another of danalab train."""
    z_loss: float = 0.0
    """Weight of mean(logsumexp^2) in the minimised loss, over all positions, padding included."""
    fract_decay: float | None = 0.5
    """wsd: share of the run in which the rate falls to 0."""


@dataclass(frozen=True, kw_only=True)
class MidFlags(SftFlags):
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
class MidConfig(SftConfig):
    """A resolved mid-training, in which every token is a target."""

    stage: ClassVar[str] = "danalab.post.sft:MID"


@dataclass(frozen=True, kw_only=True)
class RlSettings(Section):
    """Problems, answers, rewards, and the policy-gradient loss."""

    title: ClassVar[str] = "rollouts"

    reward: PathText | None = setting(None, main=True)
    """Reward of all answers: exact, number, choice, code, or FILE.py:NAME; default that of each problem."""
    problems: Count = setting(16, main=True)
    """Problems in a step, over all ranks."""
    samples: Annotated[int, Ge(2)] = setting(8, main=True)
    """Answers to each problem: a group."""
    max_answer: Count = setting(256, main=True)
    """Limit on an answer [tokens]; less where prompt and answer fill the context."""
    temperature: Positive = 1.0
    """Temperature of the sampling; the policy that is trained is softmax(logits / temperature)."""
    trust_model_code: bool = setting(False, kind="execution")
    """Run the programs of the reward code where this system cannot isolate them, with the rights of your account."""
    rollout_batch: Count = setting(64, kind="execution")
    """Answers that a rank computes at the same time."""
    eval_problems: Natural = setting(64, kind="execution")
    """Test problems of each task that are answered, greedily, at each evaluation; 0: none."""

    policy_loss: PolicyLossName = setting("dapo", main=True)
    """Loss; docs/rl.md has the formulas."""
    clip_low: Annotated[float, Ge(0), Lt(float("inf"))] | None = None
    """The ratio is limited to 1 - clip-low from below; default the loss's."""
    clip_high: Annotated[float, Gt(0), Lt(float("inf"))] | None = None
    """The ratio is limited to 1 + clip-high from above; default the loss's."""
    kl: NonNegative = 0.0
    """Weight of the KL divergence from the run that it starts from."""
    advantage_std: bool = False
    """Divide the advantages of a group by the deviation of its rewards."""
    mask_truncated: bool = False
    """Leave answers that were cut off out of the loss; they count in the mean of their group."""


@dataclass(frozen=True, kw_only=True)
class RlFlags(RlSettings, RunSettings):
    """Flags of `danalab rl`; model and tokenizer are those of --run."""

    title: ClassVar[str] = "reinforcement learning"

    run: Path = setting(main=True)
    """The run to start from: a fine-tuned one."""
    task: tuple[PathText, ...] = setting((), main=True)
    """Tasks: NAME or NAME:KEY=VALUE,... (arithmetic:max=9), FILE.jsonl, or several; weight=2 doubles a share."""
    data_seed: Natural = 1337
    """Seed of the order of the problems and of the sampling."""
    iterations: Auto[Count] = setting(100, main=True)
    """Length of the run [steps]."""
    opt: PathText = setting("", main=True)
    """Optimizer; default the run's, with its settings."""
    lr_fraction: Positive = setting(0.05, main=True)
    """Peak learning rate, where --lr isn't given: this share of the run's, or of the fitted law's for another --opt."""
    scheduler: str = "linear"
    """Learning-rate schedule: linear to 0; or another of danalab train."""
    weight_decay: Auto[float] = 0.0
    """Weight decay."""
    log_interval: Count = setting(1, kind="execution")
    """Steps between rows of metrics.jsonl."""

    def check(self) -> None:
        super().check()
        for name in ("global_batch", "acc_steps", "epochs"):
            if getattr(self, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag}: a step has --problems x --samples answers; leave it out")


@dataclass(frozen=True, kw_only=True)
class RlConfig(RlSettings, TrainConfig):
    """A resolved run; `data` has a line for each task, `tokenizer` is the folder of the run's."""

    stage: ClassVar[str] = "danalab.post.rl:RL"

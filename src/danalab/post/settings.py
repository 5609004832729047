"""Settings of mid-training, supervised fine-tuning and reinforcement learning, as flags. Need no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError
from danalab.post.policy_losses import OBJECTIVES
from danalab.train.config.flags import (
    Auto,
    Count,
    Natural,
    NonNegative,
    PathText,
    Positional,
    Positive,
    Section,
    setting,
)
from danalab.train.config.train_config import RunSettings, TrainConfig

STAGES = ("base", "mid", "sft", "rl")
"""The stages of a chat model, in their order."""
LR_FRACTION = (
    "Peak learning rate without --lr: this share of the run's, or of the fitted law's for another --opt."
)
Share = Annotated[float, Gt(0), Lt(1)]
if TYPE_CHECKING:
    PolicyLossName = str
else:
    PolicyLossName = Literal[tuple(OBJECTIVES)]


@dataclass(frozen=True, kw_only=True)
class ConversationSettings(Section):
    """Settings that a run on conversations records beside those of `TrainConfig`."""

    title: ClassVar[str] = "conversations"

    val_data: tuple[PathText, ...] = setting(
        (), "Conversations for validation, in the form of --data; default a share of the others.", kind="data"
    )
    val_share: Share = setting(
        0.05,
        "Share of the conversations that is kept for validation, at least one; without --val-data.",
        kind="data",
    )
    replay: PathText | None = setting(
        None,
        "Data set of plain text that is mixed in, in the form of danalab train --data, with the "
        "tokenizer of the run.",
        kind="data",
    )
    replay_share: Share = setting(0.3, "Share of the rows that are from --replay.")


@dataclass(frozen=True, kw_only=True)
class StageFlags(RunSettings):
    """Flags of every stage; model and tokenizer are those of --run."""

    run: Positional[Path] = setting(help="The run to start from: a base run, or an earlier stage.", main=True)
    data_seed: Natural = setting(1337, "Seed of the order of the data, and of sampled answers.")
    opt: PathText = setting("", "Optimizer; default the run's, with its settings.", main=True)
    lr_fraction: Positive = setting(0.8, LR_FRACTION, main=True)
    weight_decay: Auto[float] = setting(0.0, "Weight decay.", main=True)


@dataclass(frozen=True, kw_only=True)
class SftFlags(StageFlags, ConversationSettings):
    """Flags of `danalab sft`."""

    data: tuple[PathText, ...] = setting(
        (),
        "Conversations: files (FILE.jsonl), tasks (NAME or NAME:KEY=VALUE,...), or several of them.",
        main=True,
    )
    seq_len: Annotated[int, Ge(2)] | None = setting(
        None,
        "Length of a row [tokens]; default and limit: the run's context, which the model keeps.",
        main=True,
    )
    run_dir: Auto[Path] = setting(
        None,
        "The run folder; default RUN-sft or RUN-mid, beside the run.",
        kind="job",
        main=True,
        aliases=("output-dir",),
    )
    lr: Auto[Positive] = setting(None, "Peak learning rate; default --lr-fraction of the run's.", main=True)
    iterations: Auto[Count] = setting(
        None, "Length of the run [steps]; default one pass over the conversations.", main=True
    )
    batch_size: Auto[Count] = setting(
        None,
        "Sequences of one micro-batch on one rank; default the run's, or a divisor of the global batch.",
        kind="execution",
        main=True,
    )
    epochs: Positive | None = setting(
        None,
        "Length of the run in passes over the conversations; default 1, without --iterations.",
        kind="input",
        main=True,
    )
    global_batch: Auto[Count] = setting(
        None, "Sequences in a step; default the run's, or less where the rows are fewer.", main=True
    )
    scheduler: str = setting(
        "wsd", "Learning-rate schedule: constant, then linear to 0; or another of danalab train."
    )
    z_loss: float = setting(
        0.0, "Weight of mean(logsumexp^2) in the minimised loss, over all positions, padding included."
    )
    fract_decay: float | None = setting(0.5, "wsd: share of the run in which the rate falls to 0.")


@dataclass(frozen=True, kw_only=True)
class MidFlags(SftFlags):
    """Flags of `danalab mid`."""

    fract_decay: float | None = setting(0.2, "wsd: share of the run in which the rate falls to 0.")
    lr_fraction: Positive = setting(1.0, LR_FRACTION, main=True)


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

    reward: PathText | None = setting(
        None,
        "Reward of all answers: exact, number, choice, code, or FILE.py:NAME; default that of each problem.",
        main=True,
    )
    problems: Count = setting(16, "Problems in a step, over all ranks.", main=True)
    samples: Annotated[int, Ge(2)] = setting(8, "Answers to each problem: a group.", main=True)
    max_answer: Count = setting(
        256, "Limit on an answer [tokens]; less where prompt and answer fill the context.", main=True
    )
    temperature: Positive = setting(
        1.0, "Temperature of the sampling; the policy that is trained is softmax(logits / temperature)."
    )
    trust_model_code: bool = setting(
        False,
        "Run model-written programs even where they can't be sandboxed, with the permissions "
        "of your account.",
        kind="execution",
    )
    rollout_batch: Count = setting(64, "Answers that a rank computes at the same time.", kind="execution")
    eval_problems: Natural = setting(
        64,
        "Test problems of each task that are answered, greedily, at each evaluation; 0: none.",
        kind="execution",
    )

    policy_loss: PolicyLossName = setting("dapo", "Loss; docs/rl.md has the formulas.", main=True)
    clip_low: Annotated[float, Ge(0), Lt(float("inf"))] | None = setting(
        None, "The ratio is limited to 1 - clip-low from below; default the loss's."
    )
    clip_high: Annotated[float, Gt(0), Lt(float("inf"))] | None = setting(
        None, "The ratio is limited to 1 + clip-high from above; default the loss's."
    )
    kl: NonNegative = setting(0.0, "Weight of the KL divergence from the run that it starts from.")
    advantage_std: bool = setting(False, "Divide advantages by the group's reward standard deviation.")
    mask_truncated: bool = setting(
        False, "Leave answers that were cut off out of the loss; they count in the mean of their group."
    )


@dataclass(frozen=True, kw_only=True)
class RlFlags(RlSettings, StageFlags):
    """Flags of `danalab rl`."""

    title: ClassVar[str] = "reinforcement learning"

    task: tuple[PathText, ...] = setting(
        (),
        "Tasks: NAME or NAME:KEY=VALUE,... (arithmetic:max=9), FILE.jsonl, or several; weight=2 "
        "doubles a share.",
        main=True,
    )
    iterations: Auto[Count] = setting(100, "Length of the run [steps].", main=True)
    lr_fraction: Positive = setting(0.05, LR_FRACTION, main=True)
    scheduler: str = setting("linear", "Learning-rate schedule: linear to 0; or another of danalab train.")
    log_interval: Count = setting(1, "Steps between rows of metrics.jsonl.", kind="execution")

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

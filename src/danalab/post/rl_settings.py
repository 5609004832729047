"""Settings of reinforcement learning: what differs from pre-training. Need no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Lt

from danalab.errors import UserError
from danalab.train.config.fields import Count, Natural, NonNegative, Positive, Section, setting
from danalab.train.config.train_config import RunSettings, TrainConfig


@dataclass(frozen=True, kw_only=True)
class RolloutFlags(Section):
    """Problems, answers and rewards."""

    title: ClassVar[str] = "rollouts"

    reward: str | None = setting(None, main=True)
    """Reward of all answers: exact, number, choice, code, or FILE.py:NAME; default that of each problem."""
    problems: Count = setting(16, main=True)
    """Problems in a step, over all ranks."""
    samples: Annotated[int, Ge(2)] = setting(8, main=True)
    """Answers to each problem: a group."""
    max_answer: Count = setting(256, main=True)
    """Limit on an answer [tokens]; less where prompt and answer fill the context."""
    temperature: Positive = 1.0
    """Temperature of the sampling; the policy that is trained is softmax(logits / temperature)."""
    reward_seconds: Positive = setting(30.0, kind="execution")
    """Time after which a call of a reward from a file counts as hanging [s]."""
    rollout_batch: Count = setting(64, kind="execution")
    """Answers that a rank computes at the same time."""
    eval_problems: Natural = setting(64, kind="execution")
    """Test problems of each task that are answered, greedily, at each evaluation; 0: none."""


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(Section):
    """The policy-gradient loss."""

    title: ClassVar[str] = "policy loss"

    policy_loss: Literal["dapo", "dr_grpo", "gspo", "cispo", "reinforce"] = setting("dapo", main=True)
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
class RlFlags(RolloutFlags, PolicyFlags, RunSettings):
    """Flags of `danalab rl`; model and tokenizer are those of --run."""

    title: ClassVar[str] = "reinforcement learning"

    run: Path = setting(main=True)
    """The run to start from: a fine-tuned one."""
    task: tuple[str, ...] = setting((), main=True)
    """Tasks: NAME or NAME:KEY=VALUE,... (arithmetic:max=9), FILE.jsonl, or several; weight=2 doubles a share."""
    data_seed: Natural = 1337
    """Seed of the order of the problems and of the sampling."""
    iterations: Count | None = setting(100, main=True)
    """Length of the run [steps]."""
    opt: str = setting("", main=True)
    """Optimizer; default the run's, with its settings."""
    lr_fraction: Positive = setting(0.05, main=True)
    """Peak learning rate, where --lr isn't given: this share of the run's, or of the fitted law's for another --opt."""
    scheduler: str = "linear"
    """Learning-rate schedule: linear to 0; or another of danalab train."""
    weight_decay: float | None = 0.0
    """Weight decay."""
    log_interval: Count = setting(1, kind="execution")
    """Steps between rows of metrics.jsonl."""

    def check(self) -> None:
        """Refuse settings of the batch, which follow from the problems."""
        super().check()
        for name in ("global_batch", "acc_steps", "batch_ramp", "epochs"):
            if getattr(self, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag}: a step has --problems x --samples answers; leave it out")


@dataclass(frozen=True, kw_only=True)
class RlConfig(RolloutFlags, PolicyFlags, TrainConfig):
    """A resolved run; `data` has a line for each task, `tokenizer` is the folder of the run's."""

    stage: ClassVar[str] = "danalab.post.rl:RL"

"""Settings of validation and logging."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from danalab.train.config.fields import Count, Natural, Section, setting


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Section):
    """Validation."""

    title: ClassVar[str] = "evaluation"

    eval_interval: Natural | None = setting(None, kind="execution", main=True)
    """Steps between evaluations; default 200, at most a tenth of the run; 0: only at the end."""
    eval_batches: Natural | None = setting(None, kind="execution")
    """Size of the fixed validation set, in batches of 32 sequences (whatever --batch-size is); 0: the whole split;
    default 64, in short runs so few (at least 4) that all evaluations take a quarter of the time of training."""
    final_eval_batches: Natural | None = setting(None, kind="execution")
    """Size of the last evaluation, likewise; default the whole split, or as many sequences as the run trains on."""


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(Section):
    """Rows of metrics and experiment trackers."""

    title: ClassVar[str] = "tracking"

    log_interval: Count = setting(10, kind="execution")
    """Steps between rows of metrics.jsonl."""
    tensorboard: bool = setting(False, kind="execution")
    """Mirror the metrics for TensorBoard, in the run folder's tensorboard/."""
    wandb: bool = setting(False, kind="execution")
    """Mirror the metrics to Weights & Biases; a resumed run continues under its id."""
    wandb_project: str | None = setting(None, kind="execution")
    """Default $WANDB_PROJECT."""
    wandb_entity: str | None = setting(None, kind="execution")
    """Default $WANDB_ENTITY."""
    wandb_group: str | None = setting(None, kind="execution")
    """Default $WANDB_RUN_GROUP."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = setting(None, kind="execution")
    """Default $WANDB_MODE, else online; offline: for nodes without a network, sent later by `wandb sync`."""
    sample_prompts: tuple[str, ...] = setting((), kind="execution")
    """Continue these prompts at each evaluation, in the log and samples.jsonl: "Once upon" "The capital of"."""
    log_dynamics: bool = setting(False, kind="execution")
    """Log norms of weights, gradients and updates of each parameter, and angular updates: dynamics.jsonl; for the Dana
    family also signal-to-noise ratios and how often their bound acts: signal.jsonl."""
    collect_tau_stats: bool = setting(False, kind="execution")
    """dana-star's: order statistics of tau at evaluations number 10, 20, 40, ..., in the run folder's tau/."""
    profile: bool = setting(False, kind="execution")
    """Trace a few early steps of this job by torch's profiler, in the run folder's profile/."""

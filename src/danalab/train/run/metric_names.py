"""The keys of a row of metrics.jsonl, each with its unit and meaning. `<name>` stands for any name."""

import re

METRICS: dict[str, tuple[str, str]] = {
    "step": ("steps", "Steps made, this one included."),
    "tokens": ("tokens", "Tokens seen since the start of the run."),
    "flops": ("FLOPs", "Model FLOPs of all steps so far."),
    "time": ("s", "Time of training so far, without evaluations; continues on resume."),
    "train/loss": ("nats a token", "Mean cross-entropy of the step's global batch before its update (sft: of the "
                   "learned tokens; rl: the policy's loss)."),
    "train/hoyer": ("", "Hoyer regulariser of the resonance model."),
    "train/entropy": ("nats", "rl: entropy of the policy on the drawn tokens."),
    "train/clip_share": ("share", "rl: drawn tokens whose ratio is clipped."),
    "train/mismatch": ("nats", "rl: difference of log-probability between the sampler and the trained model."),
    "train/kl": ("nats", "rl: divergence from the model at the start."),
    "val/loss": ("nats a token", "Mean cross-entropy on the fixed validation batches."),
    "val/bpb": ("bits a byte", "The same per byte of text; needs the tokenizer."),
    "val/accuracy": ("share", "Validation tokens that are the most probable ones."),
    "val/tokens": ("tokens", "Tokens of the final evaluation; in the summary."),
    "val/share": ("share", "Part of the validation split that the final evaluation read; in the summary."),
    "lr": ("", "Learning rate of the step."),
    "grad_norm": ("", "Euclidean norm of the whole gradient before clipping."),
    "update_norm": ("", "Euclidean norm of the change of all weights."),
    "tokens_per_second": ("tokens/s", "Throughput since the last row, all ranks."),
    "seconds_per_step": ("s", "Time of a step since the last row."),
    "mfu": ("share", "Model FLOP/s as a share of the devices' peak."),
    "memory_gib": ("GiB", "Peak memory of rank 0."),
    "data_wait": ("s", "Time since the last row for which training waited for data."),
    "save_wait": ("s", "Time since the last row for which training waited for checkpoints."),
    "skipped": ("steps", "Steps so far without an update, because something was not finite."),
    "loss_scale": ("", "Loss scale of float16."),
    "optim/<name>": ("", "Coefficients of the optimizer (such as `alpha`, `gamma`) and means over its state; see each "
                     "optimizer's `coefficients()` and `collect_stats()`."),
    "moe/<name>": ("", "Experts: losses of the router without their weights; `max_load` and `min_load` as multiples of "
                   "an even share."),
    "diloco/<name>": ("", "After a round of DiLoCo: loss, outer gradient, divergence of workers, bytes, times."),
    "rl/<name>": ("", "Rewards, lengths and tool calls of the step's answers."),
}  # fmt: skip


def is_known(key: str) -> bool:
    """Whether a key of a row is named here."""
    return any(re.fullmatch(re.escape(name).replace("<name>", ".+"), key) for name in METRICS)

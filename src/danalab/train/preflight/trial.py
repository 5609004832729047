"""The first steps of the run itself, twice: in one job, and in two jobs of half the steps.

The row of step 1 has the loss of the initial weights. The rest of the rows gives throughput and memory, and the two
last checkpoints tell whether the run resumes bit for bit.
"""

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danalab.scaling.hardware import host_memory
from danalab.train.checkpoint.metadata import read_metadata
from danalab.train.checkpoint.tensors import read_named
from danalab.train.config.run_spec import RunSpec
from danalab.train.config.train_config import TrainConfig
from danalab.train.job import run_training
from danalab.train.preflight.verdict import Verdict
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.step.finite_guard import NonFiniteError

ABOVE, BELOW = 1.0, 0.2
"""Largest distances of the loss at step 0 from ln V [nats]: untrained logits of variance s^2 add s^2 / 2, and a head of
width d that is drawn with the deviation 1 / sqrt(d) has s = 1."""
FULLEST = 0.92
"""Share of the memory that a run may need; longer rows and evaluations need some more."""
TIMED = ("time", "tokens_per_second", "seconds_per_step", "mfu", "memory_gib", "data_wait", "save_wait")
"""Entries of a row that differ between equal runs."""


@dataclass(frozen=True)
class Trial:
    """The same steps, made in two ways."""

    whole: RunFolder
    """One job."""
    resumed: RunFolder
    """Two jobs."""
    steps: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row a step."""
        return read_rows(self.whole.metrics_file)


def make_trial(spec: RunSpec, config: TrainConfig, folder: Path, steps: int) -> Trial:
    """Train the first `steps` steps of a run in `folder`, in all its ranks; then again with a resume in the middle.

    Raises:
        UserError: the run cannot be trained: memory, device, ranks.
        NonFiniteError: a loss or gradient is not finite.
    """
    assert steps < spec.iterations
    quiet = replace(
        config, log_interval=1, eval_interval=0, ckpt_interval=0, keep_steps=(), local_ckpt_dir=None, wandb=False,
        tensorboard=False, sample_prompts=(), log_dynamics=False, collect_tau_stats=False, profile=False,
        auto_resume=True, on_nonfinite="stop", name=None, json=False,
    )  # fmt: skip
    half = steps // 2
    for name, jobs in (("whole", [steps]), ("resumed", [half, steps - half])):
        for length in jobs:
            _train(replace(quiet, run_dir=folder / name, iterations_to_run=length))
    return Trial(RunFolder(folder / "whole"), RunFolder(folder / "resumed"), steps)


def _train(config: TrainConfig) -> None:
    outcome = run_training(config)
    if outcome.status == "nonfinite":
        raise NonFiniteError("a loss or gradient of the first steps is not finite: lower --lr, or raise --warmup-steps")
    if outcome.status == "interrupted":
        raise KeyboardInterrupt


def check_first_loss(spec: RunSpec, trial: Trial) -> Verdict:
    """A model that knows nothing has the loss ln V."""
    found, expected = trial.rows[0]["train/loss"], math.log(spec.model.vocab_size)
    text = f"{found:.3f} nats at step 0, ln V = {expected:.3f} for V = {spec.model.vocab_size:,}"
    if spec.job.resume_from is not None:
        return Verdict("loss", "ok", f"{found:.3f} nats at the first step, from {spec.job.resume_from}")
    if found > expected + ABOVE:
        return Verdict("loss", "failed", f"{text}: the initial logits are too large (--init)")
    if found < expected - BELOW:
        return Verdict("loss", "failed", f"{text}: lower than possible without knowledge; do targets reach the inputs?")
    return Verdict("loss", "ok", text)


def check_memory(spec: RunSpec, trial: Trial) -> Verdict:
    """Peak memory of rank 0 against that of its device; on CPUs all ranks share the machine's."""
    found = max(row["memory_gib"] for row in trial.rows)
    if spec.device_type == "cuda":
        limit, owner = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30, "the GPU"
    else:
        found, limit, owner = found * (spec.parallel.nproc or 1), host_memory() / 2**30, "this machine"
    text = f"{found:.1f} of {limit:.0f} GiB of {owner} at micro-batch {spec.micro_batch}"
    if found > FULLEST * limit:
        return Verdict("memory", "warning", f"{text}: little is left; take a smaller --batch-size")
    return Verdict("memory", "ok", text)


def check_resume(spec: RunSpec, trial: Trial) -> Verdict:
    """Whether two jobs give the tensors and rows of one, to the last bit."""
    half = trial.steps // 2
    text = f"{trial.steps} steps in one job and {half} + {trial.steps - half} in two"
    differing = differing_tensors(*(_tensors(folder, trial.steps) for folder in (trial.whole, trial.resumed)))
    ours, theirs = ([_untimed(row) for row in read_rows(each.metrics_file)] for each in (trial.whole, trial.resumed))
    if not differing and ours == theirs:
        return Verdict("resume", "ok", f"{text}: the same to the last bit (weights, optimizer, rows)")
    where = f"{len(differing)} tensors differ, first {differing[0]}" if differing else "rows differ"
    if spec.device_type == "cuda" and not spec.execution.deterministic:
        return Verdict("resume", "warning", f"{text}: {where}; on GPUs this is expected without --deterministic")
    return Verdict("resume", "failed", f"{text}: {where}")


def differing_tensors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that are not equal, bit by bit."""
    names = sorted(ours.keys() | theirs.keys())
    return [
        name for name in names if name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name])
    ]


def _tensors(folder: RunFolder, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint: weights and the state of the optimizer."""
    path = folder.store.path(step)
    stored = read_metadata(path, real_classes=True).state_dict_metadata
    target = {name: torch.zeros(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    read_named(path, target)
    return target


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in TIMED}


def check_time(spec: RunSpec, trial: Trial) -> Verdict:
    """Throughput of the later steps, and the hours of the run without evaluations and checkpoints."""
    rates = [row["tokens_per_second"] for row in trial.rows]
    rate = statistics.median(rates[1:] or rates)  # the first step allocates and compiles
    hours = spec.batches.tokens(spec.iterations) / rate / 3600
    utilisation = trial.rows[-1].get("mfu")
    more = f", MFU {utilisation:.1%}" if utilisation is not None else ""
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    text = f"{rate:,.0f} tokens/s{more}; {spec.iterations:,} steps take {length} without evaluations and checkpoints"
    return Verdict("time", "ok", text)

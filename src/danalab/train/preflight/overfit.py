"""Whether the optimizer learns one sequence by heart: faults in loss, gradients or learning rate show in seconds."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

from danalab.data import Dataset
from danalab.train.build import build_trainer
from danalab.train.config.resolve import resolve
from danalab.train.config.run_spec import RunSpec
from danalab.train.config.sections.parallel import ParallelSettings
from danalab.train.config.train_config import TrainConfig
from danalab.train.preflight.verdict import Verdict
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.stage import BatchSource, Stage
from danalab.train.step.batch import Batch
from danalab.train.step.finite_guard import NonFiniteError

TOKENS = 128
"""Length of the sequence, which a small model can learn, too."""
ENOUGH = 0.5
"""Share of the initial loss below which the sequence counts as being learned."""


class OneBatch(BatchSource):
    """The same batch at every step."""

    def __init__(self, batch: Batch):
        self._batch = batch

    def batch(self, step: int) -> Batch:
        return self._batch


def check_overfit(spec: RunSpec, config: TrainConfig, dataset: Dataset, folder: Path, steps: int) -> Verdict:
    """Train a new model of the run in this process on the first tokens of its first batch, at its peak rate."""
    alone = {field.name: field.default for field in dataclasses.fields(ParallelSettings)}
    small = replace(
        config, **alone, run_dir=folder, name=None, lr=spec.peak_lr, iterations=steps, epochs=None, warmup_steps=None,
        batch_size=1, acc_steps=1, global_batch=1, batch_ramp=None, seq_len=spec.seq_len, seq_len_ramp=None,
        extend_to=None, resume_from=None, iterations_to_run=None, log_interval=1, eval_interval=0, ckpt_interval=0,
        keep_steps=(), wandb=False, tensorboard=False, sample_prompts=(), log_dynamics=False,
        collect_tau_stats=False, profile=False, on_nonfinite="stop",
    )  # fmt: skip
    length = min(TOKENS, spec.seq_len)
    text = f"one sequence of {length} tokens, {steps} steps at the peak learning rate {spec.peak_lr:.3g}"
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    trainer = build_trainer(
        resolve(small, dataset, device_type=spec.device_type), dataset, run, make_stage=_one_sequence
    )
    try:
        trainer.fit()
    except NonFiniteError:
        return Verdict("overfit", "failed", f"{text}: the loss is not finite; lower --lr")
    losses = [row["train/loss"] for row in read_rows(run.metrics_file)]
    text += f": loss {losses[0]:.2f} -> {losses[-1]:.2f}"
    if losses[-1] > ENOUGH * losses[0]:
        return Verdict("overfit", "failed", f"{text}; it should be below {ENOUGH * losses[0]:.2f}: try another --lr")
    return Verdict("overfit", "ok", text)


def _one_sequence(*arguments: Any) -> Stage:
    """The stage of pre-training with one short sequence, and no evaluation."""
    stage = pretraining(*arguments)
    batches = stage.batches.iterate(0)
    first = next(batches)
    batches.close()  # pyright: ignore[reportAttributeAccessIssue] - a generator, whose thread ends
    cut = Batch(first.inputs[:1, :TOKENS].clone(), first.targets[:1, :TOKENS].clone())
    return replace(stage, batches=OneBatch(cut), evaluators=())

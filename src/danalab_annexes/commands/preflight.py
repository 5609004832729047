"""Checks before a long run, in order, each with a verdict as soon as it is known.

data -> first steps in one job and in two: loss at step 0, memory, resume, throughput -> overfitting of one sequence
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.data import Dataset
from danalab.data.mixture import parse_mixture
from danalab.data.open import resolve_dataset
from danalab.errors import LostRankError, UserError, first_line
from danalab.models import Decoder, build_model
from danalab.optim import optimizer_spec
from danalab.scaling.hardware import host_memory
from danalab.train.build import build_trainer
from danalab.train.checkpoint.tensors import read_named
from danalab.train.checkpoint.weights import read_metadata
from danalab.train.config.execution import TrackingSettings
from danalab.train.config.resolve import resolve
from danalab.train.config.run_spec import RunSpec
from danalab.train.config.train_config import RankSettings, TrainConfig
from danalab.train.job import run_training
from danalab.train.parallel.layout import data_parallel_ranks, find_place
from danalab.train.pretraining import pretraining
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.stage import BatchSource, Stage, stage_kind
from danalab.train.step.finite_guard import NonFiniteError
from danalab.train.step.loss import TrainingBatch
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import choose_device, device_type
from danalab_annexes.data.check import validate


def check_run(config: TrainConfig, *, steps: int, overfit_steps: int) -> Iterator[Verdict]:
    """Check a run before its launch in a temporary folder: train `steps` twice, and `overfit_steps` on one sequence."""
    if find_place(os.environ) is not None:
        raise UserError("danalab check: start it without torchrun or srun; --nproc N starts the ranks")
    dataset = stage_kind(config).open_data(config)
    spec = resolve(config, dataset, data_parallel_ranks(config, {}), device_type(config.device))
    if spec.iterations <= steps:
        raise UserError(f"--check-steps {steps}: the run has {spec.iterations} steps; at least one must be left")
    yield from _attempt("data", lambda: [check_data(spec, dataset)])
    above = spec.execution.run_dir.parent.absolute()
    parent = next(each for each in (above, *above.parents) if each.is_dir())  # leaves no trace on the disk
    with tempfile.TemporaryDirectory(prefix=".danalab-check-", dir=parent) as name:
        folder = Path(name)

        def try_first_steps() -> list[Verdict]:
            trial = make_trial(spec, config, folder, steps)
            return [check(spec, trial) for check in (check_first_loss, check_memory, check_resume, check_time)]

        yield from _attempt("training", try_first_steps)
        yield from _attempt(
            "overfit", lambda: [check_overfit(spec, config, dataset, folder / "overfit", overfit_steps)]
        )


def _attempt(name: str, check: Callable[[], list[Verdict]]) -> list[Verdict]:
    """The verdicts of a check; where it cannot be carried out, that is the verdict."""
    try:
        return check()
    except (UserError, LostRankError, NonFiniteError) as error:
        return [Verdict(name, "failed", first_line(error))]


@dataclass(frozen=True)
class Verdict:
    """One line about one thing."""

    name: str
    status: Literal["ok", "warning", "failed"]
    text: str
    """The observation and, where it is not ok, what to do."""


MOST_EPOCHS = 4
"""Beyond this, repeated tokens are worth clearly less than new ones (Muennighoff et al. 2023, arXiv 2305.16264)."""


def check_data(spec: RunSpec, dataset: Dataset) -> Verdict:
    """Read all data of a run: checksums, ids, a validation split. UserError: no such split, or a small vocabulary."""
    pairs = parse_mixture(spec.given.source)
    names = [spec.given.source] if pairs is None else [name for name, _ in pairs]
    folders = [resolve_dataset(name, spec.config.tokenizer) for name in names]
    dataset.open_split("val").check_vocab(spec.model.vocab_size)
    for folder in folders:
        report = validate(folder, allow_duplicates=True)
        if not report.valid:
            more = f"; {len(report.errors) - 1} more" if len(report.errors) > 1 else ""
            text = f"{report.errors[0]}{more}; danalab data validate {folder} lists all"
            return Verdict("data", "failed", text)
    epochs = spec.batches.tokens(spec.iterations) / dataset.tokens_per_epoch(spec.plan.seq_len)
    text = f"{spec.given.source}: {dataset.size}, all read; the run sees them {epochs:.2g} times"
    if epochs > MOST_EPOCHS:
        return Verdict("data", "warning", f"{text}; more than {MOST_EPOCHS} passes teach little")
    return Verdict("data", "ok", text)


UNWATCHED = {field.name: field.default for field in fields(TrackingSettings) if field.name != "log_interval"}
"""Settings of a run that nobody watches."""
TOKENS = 128
"""Length of the sequence, which a small model can learn, too."""
ENOUGH = 0.5
"""Share of the initial loss below which the sequence counts as being learned."""


class OneBatch(BatchSource):
    """The same batch at every step."""

    def __init__(self, batch: TrainingBatch):
        self._batch = batch

    def batch(self, step: int) -> TrainingBatch:
        return self._batch


def check_overfit(spec: RunSpec, config: TrainConfig, dataset: Dataset, folder: Path, steps: int) -> Verdict:
    """Train a new model of the run in this process on the first tokens of its first batch, at its peak rate."""
    alone = {field.name: field.default for field in fields(RankSettings)}
    small = replace(
        config, **alone, run_dir=folder, name=None, lr=spec.plan.lr, iterations=steps, epochs=None, warmup_steps=None,
        batch_size=1, acc_steps=1, global_batch=1, batch_ramp=None, seq_len=spec.plan.seq_len, seq_len_ramp=None,
        extend_to=None, resume_from=None, iterations_to_run=None, log_interval=1, eval_interval=0, ckpt_interval=0,
        keep_steps=(), ema=None, average=None, on_nonfinite="stop", **UNWATCHED,
    )  # fmt: skip
    length = min(TOKENS, spec.plan.seq_len)
    text = f"one sequence of {length} tokens, {steps} steps at the peak learning rate {spec.plan.lr:.3g}"
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    small_spec = resolve(small, dataset, device_type=spec.execution.device_type)
    trainer = build_trainer(small_spec, dataset, run, make_stage=_one_sequence)
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
    cut = TrainingBatch(first.inputs[:1, :TOKENS].clone(), first.targets[:1, :TOKENS].clone())
    return replace(stage, batches=OneBatch(cut), evaluators=())


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
        """One row per step."""
        return read_rows(self.whole.metrics_file)


def make_trial(spec: RunSpec, config: TrainConfig, folder: Path, steps: int) -> Trial:
    """Train the first `steps` steps of a run in `folder`, in all its ranks; then again with a resume in the middle."""
    assert steps < spec.iterations
    quiet = replace(
        config, log_interval=1, eval_interval=0, ckpt_interval=0, keep_steps=(), local_ckpt_dir=None,
        auto_resume=True, on_nonfinite="stop", name=None, json=False, **UNWATCHED,
    )  # fmt: skip
    half = steps // 2
    for name, jobs in (("whole", [steps]), ("resumed", [half, steps - half])):
        for length in jobs:
            outcome = run_training(replace(quiet, run_dir=folder / name, iterations_to_run=length))
            if outcome.status == "nonfinite":
                raise NonFiniteError("a loss or gradient is not finite: lower --lr, or raise --warmup-steps")
            if outcome.status == "interrupted":
                raise KeyboardInterrupt
    return Trial(RunFolder(folder / "whole"), RunFolder(folder / "resumed"), steps)


def check_first_loss(spec: RunSpec, trial: Trial) -> Verdict:
    """A model that knows nothing has the loss ln V."""
    loss, expected = trial.rows[0]["train/loss"], math.log(spec.model.vocab_size)
    text = f"{loss:.3f} nats at step 0, ln V = {expected:.3f} for V = {spec.model.vocab_size:,}"
    if spec.config.resume_from is not None:
        return Verdict("loss", "ok", f"{loss:.3f} nats at the first step, from {spec.config.resume_from}")
    if loss > expected + ABOVE:
        return Verdict("loss", "failed", f"{text}: the initial logits are too large (--init)")
    if loss < expected - BELOW:
        return Verdict("loss", "failed", f"{text}: lower than possible without knowledge; do targets reach the inputs?")
    return Verdict("loss", "ok", text)


def check_memory(spec: RunSpec, trial: Trial) -> Verdict:
    """Peak memory of rank 0 against that of its device; on CPUs all ranks share the machine's."""
    peak = max(row["memory_gib"] for row in trial.rows)
    if spec.execution.device_type == "cuda":
        limit, owner = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 2**30, "the GPU"
    else:
        peak, limit, owner = peak * (spec.config.nproc or 1), host_memory() / 2**30, "this machine"
    text = f"{peak:.1f} of {limit:.0f} GiB of {owner} at micro-batch {spec.budget.batch_size}"
    if peak > FULLEST * limit:
        return Verdict("memory", "warning", f"{text}: little is left; take a smaller --batch-size")
    return Verdict("memory", "ok", text)


def check_resume(spec: RunSpec, trial: Trial) -> Verdict:
    """Whether two jobs give the tensors and rows of one, to the last bit."""
    half = trial.steps // 2
    text = f"{trial.steps} steps in one job and {half} + {trial.steps - half} in two"
    differing = differing_tensors(*(_tensors(folder, trial.steps) for folder in (trial.whole, trial.resumed)))
    ours, theirs = (
        [{key: value for key, value in row.items() if key not in TIMED} for row in read_rows(each.metrics_file)]
        for each in (trial.whole, trial.resumed)
    )
    if not differing and ours == theirs:
        return Verdict("resume", "ok", f"{text}: the same to the last bit (weights, optimizer, rows)")
    where = f"{len(differing)} tensors differ, first {differing[0]}" if differing else "rows differ"
    if spec.execution.device_type == "cuda" and not spec.config.deterministic:
        return Verdict("resume", "warning", f"{text}: {where}; on GPUs this is expected without --deterministic")
    return Verdict("resume", "failed", f"{text}: {where}")


def differing_tensors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that are not equal, bit by bit."""
    names = sorted(ours.keys() | theirs.keys())
    return [name for name in names if not (name in ours and name in theirs and torch.equal(ours[name], theirs[name]))]


def _tensors(folder: RunFolder, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint: weights and the state of the optimizer."""
    path = folder.store.path(step)
    stored = read_metadata(path, real_classes=True).state_dict_metadata
    target = {name: torch.zeros(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    read_named(path, target)
    return target


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


# ---- the coordinate check ----
#
# The coordinate check: do activations keep their size as the width grows, in each of the first steps of training?
#
#     a(width, step) = mean |x| over what a block puts out, and over (W - W_0) h, logits by what the head W has learned
#     flat: largest a <= 2 x smallest a over the widths, in every step
#
# All widths train on the same batch at the same peak rate, with heads of the same size. The head's initial weights W_0
# are left out since their part of the logits falls as 1 / sqrt(width) in mup, which is meant.
# Source: Yang et al. 2022, arXiv 2203.03466, appendix D.1.


FLAT = 2.0
"""Largest ratio of the sizes at two widths."""
STEPS, ROWS = 10, 8


@dataclass(frozen=True)
class Coordinates:
    """Sizes of activations of models that differ in width."""

    widths: tuple[int, ...]
    lr: float
    sizes: dict[str, list[list[float]]]
    """"block 1", ..., "logits" -> for each step, the size at each width."""

    def ratios(self) -> dict[str, float]:
        """Largest ratio between two widths, over all steps."""
        return {name: max(max(row) / max(min(row), 1e-30) for row in rows) for name, rows in self.sizes.items()}

    @property
    def is_flat(self) -> bool:
        return all(ratio <= FLAT for ratio in self.ratios().values())


def check_coordinates(config: TrainConfig, widths: Sequence[int]) -> Coordinates:
    """Train models of `config` that differ in width for `STEPS` steps on the run's first batch; nothing is written.

    The rate is --lr, or the automatic one of the narrowest, which is the base of mup and completep (default of
    --base-d-model here); the size of a head is --head-dim, or half the narrowest width. UserError: a width that is no
    multiple of the size of a head, or an optimizer whose steps are not like Adam's.
    """
    if not optimizer_spec(config.opt).adam_like:
        raise UserError(f"--coordinates: {config.opt} does not take steps like Adam's, which the check is for")
    widths = tuple(sorted(set(widths)))
    head_dim = config.head_dim or max(2, widths[0] // 4 * 2) if widths else 0
    if len(widths) < 2 or any(width < 1 or width % head_dim for width in widths):
        raise UserError(f"--widths {widths}: give two or more, multiples of the size of a head, {head_dim}")
    dataset = stage_kind(config).open_data(config)
    layers, device = resolve(config, dataset).model.n_layers, choose_device(config.device)
    lr, sizes = config.lr, {}
    base = None if config.parametrization == "standard" else config.base_d_model or widths[0]
    for width in widths:
        settings = replace(
            config, heads=None, size=None, d_model=width, n_layers=layers, n_heads=width // head_dim,
            head_dim=head_dim, mlp_dim=None, n_kv_heads=None, lr=lr, base_d_model=base, warmup_steps=None,
        )  # fmt: skip
        spec = resolve(settings, dataset, device_type=device.type)
        lr = spec.plan.lr
        inputs, targets = (torch.as_tensor(ids, device=device) for ids in dataset.sequential(spec.plan.seq_len)[:ROWS])
        model = build_model(spec.model, init=spec.config.init, seed=config.seed, device=device)
        driver = OptimizerDriver.build(spec, model)
        for step, row in enumerate(_sizes(model, driver, inputs.long(), targets.long())):
            for name, value in row.items():
                sizes.setdefault(name, [[] for _ in range(STEPS)])[step].append(value)
    return Coordinates(widths, lr or 0.0, sizes)


def _sizes(model: Decoder, driver: OptimizerDriver, inputs: Tensor, targets: Tensor) -> Iterator[dict[str, float]]:
    """Sizes of the activations after each of the first steps on one batch."""
    row: dict[str, float] = {}
    for number, block in enumerate(model.blocks, 1):
        block.register_forward_hook(lambda _, __, output, *, name=f"block {number}": row.update({name: _mean(output)}))
    driver.train()
    initial = model.head_weight.detach().clone()
    for step in range(STEPS + 1):
        hidden = model.hidden(inputs)
        if step:
            yield {**row, "logits": _mean(hidden @ (model.head_weight - initial).T)}
        logits = hidden @ model.head_weight.T
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        driver.step(torch.ones((), dtype=torch.bool))
        driver.zero_grad()


def _mean(x: Tensor) -> float:
    return float(x.detach().float().abs().mean())

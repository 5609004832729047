"""Memory of training: checked before the run is built, tried before its first step, and the micro-batch that fits it.

check_training_memory   by the estimate, before anything is built
check_memory            a full micro-batch on the device beside the optimizer's state; the run does not change
fit_memory              the largest micro-batch: by the estimate, and on a GPU that is there by trials
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from danalab.errors import UserError
from danalab.models import build_model
from danalab.models.decoder import require_memory
from danalab.optim.base import local_part as local
from danalab.scaling.hardware import host_memory, named, state_bytes
from danalab.train.config.run_spec import RunSpec, run_memory_gib
from danalab.train.parallel.world import World
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss import CrossEntropy, TrainingBatch
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import (
    autocast_context,
    autocast_dtype,
    explain_errors,
    random_state,
    restore_random_state,
)

log = logging.getLogger(__name__)

COPIES = 1
"""Copies of the weights that an update needs besides the state (1: the weights before the step)."""


def check_training_memory(spec: RunSpec, world: World, device: torch.device) -> None:
    """Check, before anything is built, that weights, gradients, optimizer state and one micro-batch fit in memory."""
    needed = run_memory_gib(spec, spec.budget.batch_size, world.size, recompute=True)
    require_memory(int(needed * 2**30), device, "training with this model, micro-batch and context")


def check_memory(
    gradients: GradientStep, driver: OptimizerDriver, *, device: torch.device, state_share: float = 1.0
) -> float:
    """Peak [GiB] of a micro-batch's gradients on a GPU, else 0; `state_share` of the state is here. Collective."""
    random, micro_batch, seq_len = random_state(), gradients.micro_batch, gradients.seq_len
    assert seq_len is not None
    with explain_errors(micro_batch, seq_len):
        numbers = sum(local(p).numel() for p in driver.parameters)
        made = any(driver.optimizer.state.values())
        per_number = state_bytes(driver.name or "adamw")  # a plain torch optimizer has no name
        size = 0 if made else int(per_number * state_share * numbers)
        state = torch.empty(size, dtype=torch.uint8, device=device)
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.int64)
        gradients.of_labels(TrainingBatch(tokens, tokens))
        update = torch.empty(COPIES * numbers, dtype=torch.float32, device=device)
        del state, update
    driver.zero_grad()
    restore_random_state(random)
    if device.type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.empty_cache()  # cached blocks of other sizes would fragment the memory
    return peak


USED = 0.92
"""Share of the memory that the estimate fills; allocator, kernels and libraries need the rest."""
LARGEST = 65_536
"""Largest micro-batch that is considered [sequences]."""


@dataclass(frozen=True)
class MemoryFit:
    """The largest micro-batch of one device."""

    micro_batch: int
    """Sequences."""
    memory_gib: float
    """Memory that a step with it needs: measured where it was tried, else estimated."""
    limit_gib: float
    """Memory of the device."""
    device: str
    tried: bool
    """Whether a step was tried on the device."""

    def division(self, local_batch: int) -> tuple[int, int]:
        """(micro-batch, accumulation) of a rank's batch: the largest divisor that fits."""
        size = next(size for size in range(min(self.micro_batch, local_batch), 0, -1) if local_batch % size == 0)
        return size, local_batch // size


def fit_memory(spec: RunSpec, ranks: int, gpu: str | None = None) -> MemoryFit:
    """The largest micro-batch of one of `ranks`, for the accelerator `gpu`; None: by trials on this GPU, else for this
    machine's memory."""
    if gpu is not None:
        device = named(gpu)
        return _estimated(spec, ranks, device.memory_gib, device.name, 2)
    if not torch.cuda.is_available():
        short = 4 if spec.execution.dtype == "float32" else 2
        return _estimated(spec, ranks, host_memory() / 2**30, "this machine", short)
    device = torch.device("cuda", torch.cuda.current_device())
    name, limit = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory / 2**30
    peaks: dict[int, float] = {}

    def fits(micro_batch: int) -> bool:
        try:
            peaks[micro_batch] = _trial(spec, micro_batch, device)
        except UserError:
            return False
        finally:
            gc.collect()  # a failed trial leaves its model in the traceback
            torch.cuda.empty_cache()
        return True

    guess = _by_estimate(partial(run_memory_gib, spec), limit)
    micro_batch = largest(fits, max(1, guess))
    if micro_batch == 0:
        raise UserError(f"not even a micro-batch of 1 x {spec.plan.seq_len} tokens fits on the {name}")
    return MemoryFit(micro_batch, peaks[micro_batch], limit, name, tried=True)


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """n of 1..`LARGEST` that fits while n + max(1, n / 16) does not; 0: none. The search starts at `guess`."""
    low, high, trial = 0, LARGEST + 1, min(guess, LARGEST)
    while high - low > max(1, low // 16):
        if fits(trial):
            low = trial
            trial = min(2 * trial, (low + high) // 2) if high <= LARGEST else min(2 * trial, LARGEST)
        else:
            high = trial
            trial = (low + high) // 2
    return low


def _estimated(spec: RunSpec, ranks: int, limit_gib: float, device: str, activation_bytes: int) -> MemoryFit:
    def needed(micro_batch: int) -> float:
        return run_memory_gib(spec, micro_batch, ranks, activation_bytes)

    micro_batch = _by_estimate(needed, limit_gib)
    if micro_batch == 0:
        less = "--distributed-backend fsdp on several GPUs"
        if spec.config.activation_checkpointing != "full":
            less = "--activation-checkpointing full"
        raise UserError(
            f"not even a micro-batch of 1 x {spec.plan.seq_len} tokens fits in the {limit_gib:.0f} GiB of {device} "
            f"(estimate: {needed(1):.1f} GiB); {less} needs less"
        )
    return MemoryFit(micro_batch, needed(micro_batch), limit_gib, device, tried=False)


def _by_estimate(needed: Callable[[int], float], limit_gib: float) -> int:
    """The largest micro-batch by `needed` [GiB], which is linear; 0 where nothing fits."""
    states = needed(0)
    return max(0, min(int((USED * limit_gib - states) / (needed(1) - states)), LARGEST))


def _trial(spec: RunSpec, micro_batch: int, device: torch.device) -> float:
    """Peak memory of a step [GiB]; UserError: out of memory."""
    torch.cuda.reset_peak_memory_stats(device)
    with explain_errors(micro_batch, spec.plan.seq_len):
        model = build_model(spec.model, seed=0, device=device)
        model.set_activation_checkpointing(spec.config.activation_checkpointing)
        driver = OptimizerDriver.build(spec, model)
        gradients = GradientStep(
            model,
            driver.parameters,
            micro_batch=micro_batch,
            seq_len=spec.plan.seq_len,
            grad_clip=spec.config.grad_clip,
            loss=CrossEntropy(),
            autocast=autocast_context(autocast_dtype(None, device), device),
        )
        return check_memory(gradients, driver, device=device)

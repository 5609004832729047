"""The largest micro-batch that fits in memory: by the estimate, and on a GPU that is there by trials."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from danalab.errors import UserError
from danalab.scaling.estimates import memory_gib
from danalab.scaling.hardware import host_memory, named
from danalab.train.config.run_spec import RunSpec

if TYPE_CHECKING:
    import torch

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


def fit_memory(spec: RunSpec, gpu: str | None = None) -> MemoryFit:
    """The largest micro-batch of a run.

    Args: gpu: name of an accelerator, for the estimate; None: the GPU of this machine, by trials, else its memory.
    Raises:
        UserError: not even one sequence fits.
    """
    if gpu is not None:
        device = named(gpu)
        return _estimated(spec, device.memory_gib, device.name, 2)
    import torch

    if not torch.cuda.is_available():
        return _estimated(spec, host_memory() / 2**30, "this machine", 4 if spec.dtype == "float32" else 2)
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

    found = largest(fits, max(1, _by_estimate(partial(memory_gib, spec.plan, state_dtype=spec.state_dtype), limit)))
    if found == 0:
        raise UserError(f"not even a micro-batch of 1 x {spec.seq_len} tokens fits on the {name}")
    return MemoryFit(found, peaks[found], limit, name, tried=True)


def largest(fits: Callable[[int], bool], guess: int, resolution: int = 16) -> int:
    """A number n of 1..`LARGEST` that fits while n + max(1, n / resolution) does not; 0 where 1 does not.

    Args:
        fits: true up to some number and false beyond; an expensive trial.
        guess: where to start.
    """
    low, high, trial = 0, LARGEST + 1, min(guess, LARGEST)
    while high - low > max(1, low // resolution):
        if fits(trial):
            low = trial
            trial = min(2 * trial, (low + high) // 2) if high <= LARGEST else min(2 * trial, LARGEST)
        else:
            high = trial
            trial = (low + high) // 2
    return low


def _estimated(spec: RunSpec, limit_gib: float, device: str, activation_bytes: int) -> MemoryFit:
    def needed(micro_batch: int) -> float:
        return memory_gib(spec.plan, micro_batch, activation_bytes, state_dtype=spec.state_dtype)

    found = _by_estimate(needed, limit_gib)
    if found == 0:
        raise UserError(
            f"not even a micro-batch of 1 x {spec.seq_len} tokens fits in the {limit_gib:.0f} GiB of {device} "
            f"(estimate: {needed(1):.1f} GiB)"
        )
    return MemoryFit(found, needed(found), limit_gib, device, tried=False)


def _by_estimate(needed: Callable[[int], float], limit_gib: float) -> int:
    """The largest micro-batch by `needed` [GiB], which is linear; 0 where nothing fits."""
    states = needed(0)
    return max(0, min(int((USED * limit_gib - states) / (needed(1) - states)), LARGEST))


def _trial(spec: RunSpec, micro_batch: int, device: "torch.device") -> float:
    """Peak memory of a step [GiB].

    Raises:
        UserError: out of memory.
    """
    import torch

    from danalab.models import build_model
    from danalab.train.step.gradients import GradientStep
    from danalab.train.step.loss import CrossEntropy
    from danalab.train.step.memory_check import check_memory
    from danalab.train.step.optimizer_driver import OptimizerDriver
    from danalab.train.system.device import autocast_context, autocast_dtype
    from danalab.train.system.errors import explain_errors

    torch.cuda.reset_peak_memory_stats(device)
    with explain_errors(micro_batch, spec.seq_len):
        model = build_model(spec.model, seed=0, device=device)
        driver = OptimizerDriver.build(spec, model)
        gradients = GradientStep(
            model,
            driver.parameters,
            micro_batch=micro_batch,
            seq_len=spec.seq_len,
            grad_clip=spec.loss.grad_clip,
            loss=CrossEntropy(),
            autocast=autocast_context(autocast_dtype(None, device), device),
        )
        return check_memory(gradients, driver, device=device)

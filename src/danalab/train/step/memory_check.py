"""Tries the largest micro-batch before the first step, so that a lack of memory shows at once (batches may grow later).

Forward, backward and communication are those of a step, beside memory for the optimizer's state; then the memory of an
update is allocated. The run does not change.
"""

import logging

import torch
from torch.distributed.tensor import DTensor

from danalab.models.build import require_memory
from danalab.scaling.estimates import memory_gib, state_bytes
from danalab.train.config.run_spec import RunSpec
from danalab.train.parallel.world import World
from danalab.train.step.batch import Batch
from danalab.train.step.gradients import GradientStep
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.errors import explain_errors
from danalab.train.system.rng import random_state, restore_random_state

log = logging.getLogger(__name__)

COPIES = 1
"""Copies of the weights that an update needs besides the state (1: the weights before the step)."""


def check_training_memory(spec: RunSpec, world: World, device: torch.device) -> None:
    """Check, before anything is built, that weights, gradients, optimizer state and one micro-batch fit in memory."""
    needed = memory_gib(
        spec.plan,
        spec.micro_batch,
        state_dtype=spec.state_dtype,
        weight_shards=world.size if spec.backend == "fsdp" else 1,
        state_shards=world.size if spec.backend in ("fsdp", "zero") else 1,
        recompute=True,
    )
    require_memory(int(needed * 2**30), device, "training with this model, micro-batch and context")


def check_memory(
    gradients: GradientStep,
    driver: OptimizerDriver,
    *,
    device: torch.device,
    state_share: float = 1.0,
) -> float:
    """Compute the gradients of a full micro-batch and drop them. Collective.

    Args:
        state_share: part of the optimizer's state of its weights that this rank keeps.
    Returns:
        peak memory [GiB] on a GPU; else 0.
    Raises:
        UserError: out of memory; names the flags to change.
    """
    random, micro_batch, seq_len = random_state(), gradients.micro_batch, gradients.seq_len
    assert seq_len is not None
    with explain_errors(micro_batch, seq_len):
        weights = [p.to_local() if isinstance(p, DTensor) else p for p in driver.parameters]
        numbers = sum(p.numel() for p in weights)
        made = any(driver.optimizer.state.values())
        state_dtype = driver.optimizer.defaults.get("state_dtype", "float32")
        size = 0 if made else int(state_bytes(driver.name, state_dtype) * state_share * numbers)
        state = torch.empty(size, dtype=torch.uint8, device=device)
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.int64)
        gradients.of_labels(Batch(tokens, tokens))
        update = torch.empty(COPIES * numbers, dtype=torch.float32, device=device)
        del state, update
    driver.zero_grad()
    restore_random_state(random)
    if device.type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.empty_cache()  # cached blocks of other sizes would fragment the memory
    return peak

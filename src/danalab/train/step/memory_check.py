"""The largest micro-batch of a run, tried before its first step: too little memory shows now and not after hours.

Where batches grow by a ramp, the first steps are small ones. Forward, backward and what ranks send are as in a step;
then room is taken for what an update needs. Nothing of the run changes.
"""

from __future__ import annotations

import logging

import torch
from torch.distributed.tensor import DTensor

from danalab.train.step.batch import Batch
from danalab.train.step.gradients import GradientStep
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.errors import explain_errors
from danalab.train.system.rng import random_state, restore_random_state

log = logging.getLogger(__name__)

MOMENTS, COPIES = 2, 1
"""Copies of the weights that an update needs: moments, as most optimizers have them, and the weights before it."""


def check_memory(
    gradients: GradientStep,
    driver: OptimizerDriver,
    *,
    device: torch.device,
    state_share: float = 1.0,
) -> float:
    """Compute the gradients of a full micro-batch and drop them. Collective.

    Args:
        state_share: how much of the optimizer's state this rank keeps of what its weights have.
    Returns:
        most memory in use on the way [GiB], on a GPU; else 0.
    Raises:
        UserError: memory does not suffice; says which flags to change.
    """
    random, micro_batch, seq_len = random_state(), gradients.micro_batch, gradients.seq_len
    assert seq_len is not None
    with explain_errors(micro_batch, seq_len):
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.int64)
        gradients.of_labels(Batch(tokens, tokens))
        weights = [p.to_local() if isinstance(p, DTensor) else p for p in driver.parameters]
        copies = COPIES + (0 if any(driver.optimizer.state.values()) else MOMENTS * state_share)
        room = torch.empty(int(copies * sum(p.numel() for p in weights)), dtype=torch.float32, device=device)
        del room
    driver.zero_grad()
    restore_random_state(random)
    if device.type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.empty_cache()  # the room would stand in the way of differently sized tensors
    return peak

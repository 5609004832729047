"""Memory of training: checked before the run is built, and tried before its first step."""

import torch

from danalab.models.decoder import require_memory
from danalab.models.shards import local_shard
from danalab.scaling.plan import state_bytes
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss import TrainingBatch
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import explain_errors, random_state, restore_random_state


def check_training_memory(spec: TrainConfig, world: World, device: torch.device) -> None:
    """Check, before anything is built, that weights, gradients, optimizer state and one micro-batch fit in memory."""
    needed = spec.memory_gib(spec.batch_size, world.size, recompute=True)
    require_memory(int(needed * 2**30), device, "training with this model, micro-batch and context")


def try_step(
    gradients: GradientStep, driver: OptimizerDriver, *, device: torch.device, state_share: float = 1.0
) -> float:
    """Peak [GiB] of a step on a GPU: a full micro-batch's gradients beside `state_share` of the optimizer's state.

    The run does not change. Collective. UserError: out of memory.
    """
    random, micro_batch, seq_len = random_state(), gradients.micro_batch, gradients.seq_len
    assert seq_len is not None
    with explain_errors(micro_batch, seq_len):
        numbers = sum(local_shard(p).numel() for p in driver.parameters)
        made = any(driver.optimizer.state.values())
        per_number = state_bytes(driver.name or "adamw")  # a plain torch optimizer has no name
        size = 0 if made else int(per_number * state_share * numbers)
        state = torch.empty(size, dtype=torch.uint8, device=device)
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.int64)
        gradients.of_labels(TrainingBatch(tokens, tokens))
        before = torch.empty(numbers, dtype=torch.float32, device=device)  # the weights before the step
        del state, before
    driver.zero_grad()
    restore_random_state(random)
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.empty_cache()  # cached blocks of other sizes would fragment the memory
    return peak

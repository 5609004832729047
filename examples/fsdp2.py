"""ADana with FSDP2: parameters, gradients and both moments are sharded, and the step needs no communication.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

Runs on GPUs with NCCL if available, otherwise on CPUs with gloo.
"""

from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

STEPS, CONTEXT, BATCH = 100, 8, 64


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 256)
    )
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model.to(device))
    # Build the optimizer after sharding, as always with FSDP2: its moments are then sharded like the parameters.
    optimizer = build_optimizer("adana", model, lr=3e-3, omega=4.0, horizon=STEPS)
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS)))

    text = torch.tensor(list(inspect.getsource(nn.Module).encode()))
    for step in range(STEPS):
        starts = torch.randint(
            len(text) - CONTEXT, (ranks * BATCH,), generator=torch.Generator().manual_seed(step)
        )
        windows = text[starts[rank::ranks, None] + torch.arange(CONTEXT + 1)].to(device)
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == STEPS - 1:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:3}  loss {mean / ranks:.3f}")

    state = get_optimizer_state_dict(
        model, optimizer
    )  # by parameter name, as torch.distributed.checkpoint saves it
    set_optimizer_state_dict(model, optimizer, state)
    if rank == 0:
        print(f"state of {len(state['state'])} parameters; clock at t = {optimizer.coefficients()['t']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

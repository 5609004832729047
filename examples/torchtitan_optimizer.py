"""Our optimizers in torchtitan, by its own configuration.

    python examples/torchtitan_optimizer.py      # torchtitan 0.3: its container, schedule and checkpoints
    torchrun --standalone --nproc-per-node 2 examples/torchtitan_optimizer.py      # the same with FSDP2, by gloo

torchtitan builds its optimizers from the `OptimizersContainer.Config` of a trainer's configuration. Return
`adana(lr, steps)` there, in place of `default_adamw(lr)`, from the function of your model's config_registry:

    config.optimizer = adana(lr=2e-3, steps=config.training.steps)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

from danalab.optim import build_optimizer, list_optimizers, warmup_steps


class DanalabOptimizers(OptimizersContainer):
    """torchtitan's optimizers, and ours by their names: `optimizer_name="adana"`."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        """As torchtitan's."""

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., Any]:
        if name in list_optimizers():
            return lambda params, foreach=False, **settings: build_optimizer(name, params, **settings)
        return OptimizersContainer._resolve_optimizer_factory(name)


def adana(lr: float, steps: int) -> DanalabOptimizers.Config:
    """ADana with a weight decay of `omega` / t, which embeddings, norms and biases do not have.

    The peak rate is that of each group; what needs the length of the run is given once for the optimizer.
    """
    return DanalabOptimizers.Config(
        implementation="fused",
        param_groups=[
            ParamGroupConfig(
                pattern=r"embed|norm|bias",
                optimizer_name="adana",
                optimizer_kwargs={"lr": lr, "weight_decay": 0.0},
            ),
            ParamGroupConfig(pattern=r".*", optimizer_name="adana", optimizer_kwargs={"lr": lr}),
        ],
        optimizer_factory_kwargs_by_name={"adana": {"omega": 4.0, "horizon": steps}},
    )


STEPS = 60


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))
    return fully_shard(net) if dist.is_initialized() else net


def train(net: nn.Module, optimizers: Any, schedulers: Any, first: int, last: int) -> None:
    for step in range(first, last):
        inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(step))
        loss = (net(inputs).squeeze(1) - inputs.sin().sum(1)).square().mean()
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        schedulers.step()
        if step in (0, 19, 39, STEPS - 1) and os.environ.get("RANK", "0") == "0":
            print(f"step {step + 1:3}  loss {loss:.3f}  t {next(iter(optimizers)).coefficients()['t']:.0f}")


def parts(net: nn.Module) -> tuple[Any, Any]:
    """The container and the schedule, as torchtitan's trainer builds them."""
    optimizers = adana(lr=1e-2, steps=STEPS).build(model_parts=[net])
    schedule = LRSchedulersContainer.Config(warmup_steps=warmup_steps(STEPS))
    return optimizers, schedule.build(optimizers=optimizers, training_steps=STEPS)


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    net = model()
    optimizers, schedulers = parts(net)
    train(net, optimizers, schedulers, 0, 40)
    saved = [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in part.state_dict().items()}
             for part in (net, optimizers, schedulers)]  # fmt: skip
    train(net, optimizers, schedulers, 40, STEPS)

    print("resumed from the checkpoint at step 40:")
    again = model()
    others = parts(again)
    for part, state in zip((again, *others), saved, strict=True):
        part.load_state_dict(state)
    train(again, *others, 40, STEPS)
    same = all(torch.equal(p, q) for p, q in zip(net.parameters(), again.parameters(), strict=True))
    print(f"the weights are equal bit for bit: {same}")
    if dist.is_initialized():
        dist.destroy_process_group()

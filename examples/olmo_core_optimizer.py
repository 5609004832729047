"""ADana in OLMo-core: a configuration that builds it, chosen as `type: adana` in a YAML file or in code.

    python examples/olmo_core_optimizer.py      # OLMo-core 3

    TransformerTrainModuleConfig(optim=ADanaConfig(lr=2e-3, horizon=STEPS), scheduler=CosWithWarmup(...), ...)

`horizon` is the run's number of optimizer steps. OLMo-core's schedulers scale each group's `initial_lr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from olmo_core.optim import OptimConfig
from torch import nn

from danalab.optim import ADana
from danalab.optim.groups import decay_groups

STEPS = 60


@OptimConfig.register("adana")
@dataclass
class ADanaConfig(OptimConfig[ADana]):
    """Settings of ADana; those of `group_overrides` replace the groups, in which gains and embeddings do not decay."""

    lr: float = 1e-3
    omega: float = 4.0
    horizon: int | None = None
    delta: float = 8.0
    kappa: float = 0.85

    @classmethod
    def optimizer(cls) -> type[ADana]:
        return ADana

    def build_groups(
        self, model: nn.Module, strict: bool = True
    ) -> Iterable[torch.Tensor] | list[dict[str, Any]]:
        return super().build_groups(model, strict) if self.group_overrides else decay_groups(model)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64))
    optimizer = ADanaConfig(lr=1e-2, horizon=STEPS).build(model)
    tokens = torch.randint(64, (256,))
    for step in range(STEPS):
        loss = nn.functional.cross_entropy(model(tokens), (7 * tokens + 3) % 64)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1, (step + 1) / 4) * (1 - 0.9 * step / STEPS)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 19:
            print(f"step {step + 1:3}  loss {loss:.3f}")

"""Schedule-free optimizers of the library pytorch-optimizer whose switch between weights is exact.

The library recomputes the training weights from the averages, which rounds: a run would depend on how often
it is evaluated and saved. Here they are stored (one copy, from `eval()` to `train()`).
"""

from typing import Any

import pytorch_optimizer
import torch

TRAINING_WEIGHTS = "training_weights"
"""State key while the model has the averages: the weights that are trained."""


class ExactSwitch:
    """`train()` restores exactly the weights before `eval()`; no step can be made in between."""

    param_groups: list[dict[str, Any]]
    state: Any

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if group["train_mode"] and "z" in self.state.get(p, {}):
                    self.state[p][TRAINING_WEIGHTS] = p.detach().clone()
        super().eval()  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def train(self) -> None:
        super().train()  # pyright: ignore[reportAttributeAccessIssue]
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.get(p, {}).pop(TRAINING_WEIGHTS, None)
                if kept is not None:
                    p.copy_(kept)

    def step(self, closure: Any = None) -> Any:
        if not self.param_groups[0]["train_mode"]:
            raise ValueError(
                f"{type(self).__name__}: call train() before a step; the model has the averaged weights"
            )
        return super().step(closure)  # pyright: ignore[reportAttributeAccessIssue]


class ScheduleFreeAdamW(ExactSwitch, pytorch_optimizer.ScheduleFreeAdamW):
    """The library's, with an exact switch."""


class ScheduleFreeSGD(ExactSwitch, pytorch_optimizer.ScheduleFreeSGD):
    """The library's, with an exact switch."""

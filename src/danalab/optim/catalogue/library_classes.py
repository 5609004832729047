"""Classes of pytorch-optimizer, with what keeps some of them from going on exactly where they were stopped put right.

Imports the library; `danalab.optim.catalogue.library` imports this when one of its optimizers is built.
"""

from __future__ import annotations

from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor

TRAINING_WEIGHTS = "training_weights"
"""State while a schedule-free optimizer is switched to its averages: the weights that it trains at."""


class ExactSwitch:
    """Schedule-free optimizers that come back from `eval()` to the very weights they left.

    The library computes the training weights back from the averages, which rounds: a run would depend on how often it
    was evaluated and saved. Here they are kept beside (one copy, from `eval()` to `train()`).
    """

    optional_state = (TRAINING_WEIGHTS,)
    param_groups: list[dict[str, Any]]
    state: Any

    @torch.no_grad()
    def eval(self) -> None:
        """Switch to averaged weights."""
        for group in self.param_groups:
            for p in group["params"]:
                if group["train_mode"] and "z" in self.state.get(p, {}):
                    self.state[p][TRAINING_WEIGHTS] = p.detach().clone()
        super().eval()  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def train(self) -> None:
        """Switch back to the weights that are trained."""
        super().train()  # pyright: ignore[reportAttributeAccessIssue]
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.get(p, {}).pop(TRAINING_WEIGHTS, None)
                if kept is not None:
                    p.copy_(kept)


class ScheduleFreeAdamW(ExactSwitch, pytorch_optimizer.ScheduleFreeAdamW):
    """The library's, with an exact switch."""


class ScheduleFreeSGD(ExactSwitch, pytorch_optimizer.ScheduleFreeSGD):
    """The library's, with an exact switch."""


class Prodigy(pytorch_optimizer.Prodigy):
    """The library's; its running sums, tensors within groups, come back from checkpoints as tensors."""

    def step(self, closure: Any = None) -> Any:
        """Apply the gradients."""
        device = self.get_device_from_param_groups(self.param_groups)
        for group in self.param_groups:
            for key in ("d_numerator", "d_de_nom"):
                if key in group and not isinstance(group[key], Tensor):
                    group[key] = torch.tensor([group[key]], device=device)
        return super().step(closure)


_EXACT: dict[str, type] = {
    "ScheduleFreeAdamW": ScheduleFreeAdamW,
    "ScheduleFreeSGD": ScheduleFreeSGD,
    "Prodigy": Prodigy,
}


def find(class_name: str) -> Any:
    """The class by its name in the library."""
    return _EXACT.get(class_name) or getattr(pytorch_optimizer, class_name)

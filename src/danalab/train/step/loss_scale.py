"""Loss scaling for float16, whose range is 6e-8 to 65504.

gradients finite      ->  the factor doubles after 2000 such steps in a row
gradients not finite  ->  the step is not made, the factor halves
"""

from typing import Any

import torch
from torch import Tensor

FIRST, INTERVAL = 2.0**16, 2000


class LossScale:
    """The factor on the loss, kept on the device so that nothing waits for it."""

    def __init__(self, device: torch.device):
        self.value = torch.full((), FIRST, device=device)
        """0-dim float32; never below 1."""
        self._good = torch.zeros((), dtype=torch.int32, device=device)

    @torch.no_grad()
    def update(self, finite: Tensor) -> None:
        """Adapt the factor after a step. `finite`: 0-dim bool, on the device."""
        self._good = (self._good + 1).where(finite, 0)
        grows = self._good >= INTERVAL
        self._good = self._good.where(~grows, 0)
        self.value = torch.where(finite, self.value.where(~grows, self.value * 2), self.value / 2).clamp(min=1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"value": float(self.value), "good": int(self._good)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value.fill_(state["value"])
        self._good.fill_(state["good"])

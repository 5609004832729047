"""torch's scheduler for our schedules. Its state also fits an optimizer that has split the saved one's only group."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR


class ScheduleLR(LambdaLR):
    """`LambdaLR` that also loads the state of version 0.1, where named parameters were one group."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = len(self.optimizer.param_groups)
        lists = {name: value for name, value in state_dict.items() if isinstance(value, list) and len(value) == 1}
        super().load_state_dict({**state_dict, **{name: value * groups for name, value in lists.items()}})

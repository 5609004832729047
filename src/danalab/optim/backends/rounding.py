"""Writing a new value into a parameter that may be narrower than it."""

from __future__ import annotations

import torch
from torch import Tensor

from danalab.optim.core.batch import Batch
from danalab.optim.elementwise.functional import rounding_seed, stochastic_round


def store_rounded(p: Tensor, new_p: Tensor, batch: Batch, i: int) -> None:
    """Write `new_p` (in the dtype of the moments) into `p`, parameter i of the batch, rounded once to its dtype."""
    if batch.group["stochastic_rounding"] and p.dtype in (torch.bfloat16, torch.float16):
        new_p = new_p.float()  # a parameter without dimensions takes the float64 of clocks on the device
        rounded = stochastic_round(new_p, p.dtype, rounding_seed(batch.count(i), batch.indices[i]))
        new_p = rounded if batch.skip is None else torch.where(batch.skip, p, rounded)
    p.copy_(new_p)

"""Dropout in passes that have gradients, in training mode; evaluation and decoding are unaffected."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Module):
    """x with each feature set to 0 with `probability`, the others divided by 1 - probability.

    Masks are drawn from torch's generator of the device, which checkpoints save: runs resume exactly.
    """

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        active = self.probability > 0 and self.training and torch.is_grad_enabled()
        return F.dropout(x, self.probability) if active else x

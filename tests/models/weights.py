"""Weights that hide nothing."""

from __future__ import annotations

import torch

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder


def random_model(config: ModelConfig, spread: float = 0.3) -> Decoder:
    """A model with weights of all kinds random: fresh gains and biases would hide a wrong order."""
    model = build_model(config)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=draw))
    return model

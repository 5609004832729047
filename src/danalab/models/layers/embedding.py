"""Embedding tables with a role (`danalab.models.roles`)."""

from torch import nn


class Embedding(nn.Embedding):
    """One vector for each token id, or each position."""

    def __init__(self, rows: int, dim: int, role: str = "embedding"):
        super().__init__(rows, dim)
        self.role = role

    def reset_parameters(self) -> None:
        """Does nothing: `danalab.models.init` draws all weights."""

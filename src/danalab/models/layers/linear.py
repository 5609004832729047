"""Linear maps and embedding tables with a role (`danalab.models.roles`)."""

from torch import nn


class Linear(nn.Linear):
    """y = x W^T, or x W^T + b, with W [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, role: str = "linear", bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)
        self.role = role

    def reset_parameters(self) -> None:
        """Does nothing: `danalab.models.init` draws all weights."""


class Embedding(nn.Embedding):
    """One vector for each token id, or each position."""

    def __init__(self, rows: int, dim: int, role: str = "embedding"):
        super().__init__(rows, dim)
        self.role = role

    def reset_parameters(self) -> None:
        """Does nothing: `danalab.models.init` draws all weights."""

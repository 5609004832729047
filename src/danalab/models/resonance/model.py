"""The resonance model: gated banks of damped oscillators in place of attention, SwiGLU, RMSNorm, tied head.

It needs no positions, since oscillators know how long ago they were struck (`learned_positions` adds a table all the
same); trains in O(L log L) and decodes with a state of one size, whatever has been read.
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.mlp import SwiGLU
from danalab.models.resonance.mixer import Resonator


class Resonance(Decoder):
    """See the module. `n_heads` counts the groups of channels that share poles, `head_dim` a group's channels."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.phase_lr_factor = 1.0
        """What the learning rate of phases is multiplied by; to be set before an optimizer is built."""

    def learning_rate_factors(self) -> dict[str, float]:
        """Name of each table of phases -> `phase_lr_factor`."""
        return {name: self.phase_lr_factor for name, _ in self.named_parameters() if name.endswith(".weight.phi")}

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Resonator(config), SwiGLU(config))

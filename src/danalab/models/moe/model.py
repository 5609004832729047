"""The `moe` architecture: enoki's blocks, with experts in place of each MLP (any other decoder can have them, too).

Sources: arXiv 2101.03961 (Switch Transformers), 2202.08906 (router z-loss), 2211.15841 (dropless experts).
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class Moe(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Attention(config), feed_forward(config, layer, "gelu"))

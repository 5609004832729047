"""Enoki, the paper's GPT-3-like model: rotary, QK-LayerNorm, pre-LayerNorm (gain only), GELU, untied head.

Source: arXiv 2602.05298, appendix on architectures.
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class Enoki(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Attention(config), feed_forward(config, layer, "gelu"))

"""Qwen3-Next: qwen3's blocks with experts, and in most layers, on demand, the gated delta rule in place of attention.

Without `full_attention_interval` every layer has attention: qwen3 with top-k experts and a gated shared one. With it
at 4, three layers of four remember in a state of one size, and attention turns a quarter of each head, as published.
Norms hold their gains less 1. Sources: Qwen3-Next as in the `transformers` library; arXiv 2412.06464, 2505.09388.
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.delta_rule.mixer import GatedDeltaNet
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class Qwen3Next(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        linear = config.linear_attention
        mixer = GatedDeltaNet(config) if linear is not None and layer in linear.layers else Attention(config)
        return Block(config, mixer, feed_forward(config, layer, "swiglu"))

"""Llama: rotary, pre-RMSNorm, SwiGLU, untied head (or tied: `tied_head=True`); grouped queries by `n_kv_heads`.

Sources: arXiv 2302.13971 (Llama), 2305.13245 (grouped queries).
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class Llama(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Attention(config), feed_forward(config, layer, "swiglu"))

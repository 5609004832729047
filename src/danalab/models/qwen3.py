"""Qwen3 as in the paper: rotary, QK-RMSNorm, pre-RMSNorm, SwiGLU, elementwise gated attention, untied head.

Grouped queries by `n_kv_heads`; `attention_gate=False` gives the published, ungated Qwen3.
Sources: arXiv 2505.09388 (Qwen3), 2505.06708 (gated attention), 2602.05298 (this arrangement).
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class Qwen3(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Attention(config), feed_forward(config, layer, "swiglu"))

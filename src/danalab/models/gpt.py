"""GPT-2: learned positions, pre-LayerNorm, GELU by its tanh formula, biases everywhere, head tied to the embedding.

What of this is not arranged here (positions, biases, head) is read from `danalab.scaling.architectures`.
Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

from danalab.models.block import Block
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import feed_forward


class GPT(Decoder):
    """See the module."""

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config, Attention(config), feed_forward(config, layer, "gelu-tanh"))

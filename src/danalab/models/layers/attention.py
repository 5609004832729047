"""Causal self-attention: rotary positions (or none), QK-norm, elementwise output gate, biases, grouped queries.

    q, k, v = heads of W_q x, W_k x, W_v x;   q, k = rotate(norm(q)), rotate(norm(k))
    y = W_out [ softmax(q k^T / sqrt(head_dim), causal) v * sigmoid(W_gate x) ]        (the last factor if gated)

Shapes: B batch, L length, S keys (L, or all cached positions), D model, N heads, K key-value heads, H head dimension.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models.cache import KeyValues
from danalab.models.config import ModelConfig
from danalab.models.layers.causal import attend, attend_masked
from danalab.models.layers.documents import attend_within_documents
from danalab.models.layers.linear import Linear
from danalab.models.layers.norm import make_norm
from danalab.models.layers.rotary import rotate


class Attention(nn.Module):
    """See the module. Queries, keys, values and gate are separate maps, so that each can be cut by rows (heads) over
    devices; the number of heads is read from the outputs of the maps."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, heads, kv_heads = config.d_model, config.n_heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.n_heads
        self.q = Linear(d, heads, bias=config.biased)
        self.k = Linear(d, kv_heads, bias=config.biased)
        self.v = Linear(d, kv_heads, bias=config.biased)
        self.gate = Linear(d, heads) if config.gated else None
        self.out = Linear(heads, d, role="residual", bias=config.biased)
        self.q_norm = make_norm(config, config.head_dim) if config.qk_normed else None
        self.k_norm = make_norm(config, config.head_dim) if config.qk_normed else None

    def forward(
        self, x_BLD: Tensor, rotary_L1P2: Tensor | None, state: KeyValues | None = None, starts_BL: Tensor | None = None
    ) -> Tensor:
        """Args:
        x: [B, L, D].
        rotary: (cos, sin) of these L positions; None: the embedding contains the positions.
        state: keys and values of earlier calls, or None.
        starts: where in the row each token's document starts; None: the row is one document. Not with a state.
        """
        q, k, v = (linear(x_BLD).unflatten(-1, (-1, self.head_dim)) for linear in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary_L1P2 is not None:
            q, k = rotate(q, rotary_L1P2), rotate(k, rotary_L1P2)
        y_BNLH = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), state, starts_BL)
        y = y_BNLH.transpose(1, 2).flatten(-2)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(x_BLD))
        return self.out(y)

    def _attend(
        self, q_BNLH: Tensor, k_BKLH: Tensor, v_BKLH: Tensor, state: KeyValues | None, starts: Tensor | None
    ) -> Tensor:
        if starts is not None:
            return attend_within_documents(q_BNLH, k_BKLH, v_BKLH, starts, grouped=self.grouped)
        if state is None:
            return attend(q_BNLH, k_BKLH, v_BKLH, grouped=self.grouped)
        k_BKLH, v_BKLH, mask = state.append(k_BKLH, v_BKLH)
        if mask is not None:
            return attend_masked(q_BNLH, k_BKLH, v_BKLH, mask, grouped=self.grouped)
        causal = k_BKLH.shape[2] == q_BNLH.shape[2]
        return F.scaled_dot_product_attention(q_BNLH, k_BKLH, v_BKLH, is_causal=causal, enable_gqa=self.grouped)

    def new_state(self, batch: int, max_len: int) -> KeyValues:
        """An empty cache for `max_len` positions of `batch` sequences."""
        return KeyValues(batch, max_len)

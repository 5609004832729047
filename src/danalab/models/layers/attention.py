"""Causal self-attention: rotary positions (or none), QK-norm, elementwise output gate, biases, grouped queries.

    q, k, v = heads of W_q x, W_k x, W_v x;   q, k = rotate(norm(q)), rotate(norm(k))
    y = W_out [ softmax(q k^T / sqrt(head_dim), causal) v * sigmoid(W_gate x) ]        (the last factor if gated)

A row may hold several documents, each with attention to itself only and its own positions. A document begins at each id
`start_token` (the end-of-text id before it): in the row [a b | s c d | s e] the tokens' documents start at
0 0 | 2 2 2 | 5 5, their positions are 0 1 | 0 1 2 | 0 1. The outputs for a document do not depend on its neighbours.

The rotation turns the feature pair (2j, 2j + 1) of position t by the angle t * theta^(-2j / H) (Su et al. 2021, arXiv
2104.09864).

Shapes: B batch, L length, S keys (L, or all cached positions), D model, N heads, K key-value heads, H head dimension,
P = H / 2 pairs.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from danalab.models.cache import KeyValues
from danalab.models.config import ModelConfig
from danalab.models.layers.basic import Linear, make_norm

DOCUMENT_BLOCK = 128
"""Queries in a block of rows with several documents on CPUs; elsewhere at least twice as many."""
FEW_KEYS = 512
"""Keys of a block up to which its mask is kept for the backward pass rather than computed again."""
MAX_BLOCKS = 16
"""Per row, on accelerators and under compilation, which unrolls them."""


class Attention(nn.Module):
    """Causal self-attention. Queries, keys, values and gate are separate maps, so that each can be cut by rows (heads)
    over devices; the number of heads is read from the outputs of the maps."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, heads, kv_heads = (
            config.d_model,
            config.n_heads * config.head_dim,
            config.kv_heads * config.head_dim,
        )
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.n_heads
        self.q = Linear(d, heads, bias=config.architecture.biases)
        self.k = Linear(d, kv_heads, bias=config.architecture.biases)
        self.v = Linear(d, kv_heads, bias=config.architecture.biases)
        self.gate = Linear(d, heads) if config.choice("attention_gate") else None
        self.out = Linear(heads, d, role="residual", bias=config.architecture.biases)
        self.q_norm = make_norm(config, config.head_dim) if config.choice("qk_norm") else None
        self.k_norm = make_norm(config, config.head_dim) if config.choice("qk_norm") else None

    @property
    def head_norms(self) -> tuple[nn.Module | None, ...]:
        """Norms of single heads, which a cut over ranks by heads leaves whole."""
        return self.q_norm, self.k_norm

    def forward(
        self,
        x_BLD: Tensor,
        rotary_L1P2: Tensor | None,
        state: KeyValues | None = None,
        starts_BL: Tensor | None = None,
    ) -> Tensor:
        """[B, L, D].

        Args:
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
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if starts_BL is not None:
            y_BNLH = attend_within_documents(q, k, v, starts_BL, grouped=self.grouped)
        else:
            k, v, mask = (k, v, None) if state is None else state.append(k, v)
            causal = state is None or k.shape[2] == q.shape[2]
            y_BNLH = attend(q, k, v, mask, grouped=self.grouped, causal=causal)
        y = y_BNLH.transpose(1, 2).flatten(-2)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(x_BLD))
        return self.out(y)

    def new_state(self, max_len: int) -> KeyValues:
        """An empty cache for `max_len` positions."""
        return KeyValues(max_len)


def attend(
    q_BNLH: Tensor,
    k_BKSH: Tensor,
    v_BKSH: Tensor,
    mask: Tensor | None = None,
    *,
    grouped: bool,
    causal: bool = True,
) -> Tensor:
    """softmax(q k^T / sqrt(H)) v, [B, N, L, H]; with `grouped`, k and v may have fewer heads.

    `mask` [.., L, S] says which keys a query sees; None: the earlier ones and its own (`causal`, S = L), or all.
    """
    q_BNLH, k_BKSH = q_BNLH.to(v_BKSH.dtype), k_BKSH.to(v_BKSH.dtype)  # within vmap, autocast does not
    if mask is not None and grouped and q_BNLH.device.type == "cuda":
        # The kernels that take a mask want a key for each query head; torch would compute all scores in memory instead.
        k_BKSH, v_BKSH = (x.repeat_interleave(q_BNLH.shape[1] // x.shape[1], 1) for x in (k_BKSH, v_BKSH))
        grouped = False
    is_causal = causal and mask is None
    return F.scaled_dot_product_attention(
        q_BNLH, k_BKSH, v_BKSH, mask, is_causal=is_causal, enable_gqa=grouped
    )


def attend_within_documents(
    q_BNLH: Tensor, k_BKLH: Tensor, v_BKLH: Tensor, starts_BL: Tensor, *, grouped: bool
) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over the earlier tokens of the query's own document, [B, N, L, H].

    By blocks of queries. With many keys, masks are recomputed in the backward pass: a mask for the whole row would
    have L^2 entries, and kernels keep a float one for each layer. On CPUs a block's keys begin with its first document.
    """
    length = q_BNLH.shape[2]
    on_host = starts_BL.device.type == "cpu" and not torch.compiler.is_compiling()
    size = DOCUMENT_BLOCK if on_host else max(2 * DOCUMENT_BLOCK, -(-length // MAX_BLOCKS))
    if length <= size:
        return _attend_block(q_BNLH, k_BKLH, v_BKLH, starts_BL, 0, grouped)
    outputs = []
    for first in range(0, length, size):
        last = min(first + size, length)
        # Elsewhere reading the value would wait for the device, or specialise the compiled code to this batch.
        low = int(starts_BL[:, first].min()) if on_host else 0
        queries, keys, values = q_BNLH[:, :, first:last], k_BKLH[:, :, low:last], v_BKLH[:, :, low:last]
        starts = starts_BL[:, first:last] - low
        block = _attend_block
        if last - low > FEW_KEYS:
            block = partial(checkpoint, _attend_block, use_reentrant=False, preserve_rng_state=False)
        outputs.append(block(queries, keys, values, starts, first - low, grouped))
    return torch.cat(outputs, dim=2)


def document_starts(tokens_BL: Tensor, start_token: int) -> Tensor:
    """Position in the row of the first token of each token's document, int64 [B, L]."""
    index = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
    return torch.where(tokens_BL == start_token, index, 0).cummax(dim=1).values


def document_positions(starts_BL: Tensor) -> Tensor:
    """Position of each token in its document, int64 [B, L]."""
    return torch.arange(starts_BL.shape[1], device=starts_BL.device) - starts_BL


def _attend_block(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, past: int, grouped: bool) -> Tensor:
    """Attention of queries at positions `past`, `past` + 1, ... of the keys; `starts` [B, queries] is from key 0."""
    key = torch.arange(k.shape[2], device=k.device)
    query = past + torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    mask = (key <= query) & (key >= starts.unsqueeze(2))
    return attend(q, k, v, mask.unsqueeze(1), grouped=grouped)


class Rotary(nn.Module):
    """The table of (cos, sin), [seq_len, 1, P, 2], float32 (float64 in a float64 model) for all dtypes of weights."""

    table: Tensor

    def __init__(self, seq_len: int, head_dim: int, theta: float):
        super().__init__()
        self.seq_len, self.head_dim, self.theta = seq_len, head_dim, theta
        self.register_buffer("table", torch.empty(seq_len, 1, head_dim // 2, 2), persistent=False)
        self._fill()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        # Every change of device or dtype calls this. Recomputing the table keeps it exact after .double(), float32
        # after .bfloat16(), and correct after a meta model is materialised.
        super()._apply(fn, recurse)
        self._fill()
        return self

    def _fill(self) -> None:
        old = self.table
        dtype = torch.float64 if old.dtype == torch.float64 else torch.float32
        if old.is_meta:
            self.table = old.to(dtype)
            return
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = torch.arange(self.seq_len, dtype=torch.float64)[:, None] * self.theta**-exponents
        self.table = torch.stack((angles.cos(), angles.sin()), dim=-1).unsqueeze(1).to(old.device, dtype)

    def forward(self, positions: Tensor) -> Tensor:
        """(cos, sin) of positions [L] or [B, L]: [L, 1, P, 2] or [B, L, 1, P, 2]."""
        return self.table[positions]


def rotate(x_BLNH: Tensor, table_L1P2: Tensor) -> Tensor:
    """Turn every pair of features of `x` by its position's angle, in the table's precision; keeps x's dtype.

    The table may have a leading dimension B. Features beyond its pairs stay as they are.
    """
    rotated = 2 * table_L1P2.shape[-2]
    if rotated < x_BLNH.shape[-1]:
        return torch.cat((rotate(x_BLNH[..., :rotated], table_L1P2), x_BLNH[..., rotated:]), dim=-1)
    x = x_BLNH.to(table_L1P2.dtype).unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # inductor has no complex arithmetic, and fuses this form
        (even, odd), (cos, sin) = x.unbind(-1), table_L1P2.unbind(-1)
        rotated_x = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    else:  # eager: one pass forward and one back
        rotated_x = torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(table_L1P2))
    return rotated_x.flatten(-2).to(x_BLNH.dtype)

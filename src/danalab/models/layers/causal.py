"""Attention by the fastest way that a device has: causal, or with any mask.

On CPUs torch's kernel multiplies small pieces one by one; over causal rows of up to `LONGEST` tokens a few large
products are faster.
Shapes: B batch, N heads, L length, H head dimension.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.models.layers.products import uses_onednn

LONGEST = 512
"""Tokens of a row. The probabilities are kept for the backward pass, about B N L^2 / 2 numbers."""
BLOCK = 128
"""Queries of a product; their keys end with the last of them."""


def attend(q_BNLH: Tensor, k_BNLH: Tensor, v_BNLH: Tensor, *, grouped: bool) -> Tensor:
    """softmax(q k^T / sqrt(H), causal) v, [B, N, L, H]; with `grouped`, k and v may have fewer heads."""
    length = q_BNLH.shape[2]
    if grouped or length > LONGEST or not uses_onednn(q_BNLH):
        return F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH, is_causal=True, enable_gqa=grouped)
    scaled = q_BNLH * q_BNLH.shape[-1] ** -0.5
    outputs = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        scores = scaled[:, :, start:end] @ k_BNLH[:, :, :end].transpose(-1, -2)
        # In place: an addition needs nothing for its backward pass.
        probabilities = torch.softmax(scores.add_(_mask(start, end, scores)), dim=-1)
        outputs.append(probabilities @ v_BNLH[:, :, :end])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def attend_masked(q_BNLH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor, *, grouped: bool) -> Tensor:
    """softmax(q k^T / sqrt(H)) v over the keys where `mask` [.., L, S] is True, [B, N, L, H]."""
    if grouped and q_BNLH.device.type == "cuda":
        # The kernels that take a mask want a key for each query head; torch would compute all scores in memory instead.
        k_BKSH, v_BKSH = (x.repeat_interleave(q_BNLH.shape[1] // x.shape[1], 1) for x in (k_BKSH, v_BKSH))
        grouped = False
    return F.scaled_dot_product_attention(q_BNLH, k_BKSH, v_BKSH, mask, enable_gqa=grouped)


def _mask(start: int, end: int, like: Tensor) -> Tensor:
    """0 for the keys up to a query, -inf for later ones: [end - start, end]."""
    return torch.full((end - start, end), float("-inf"), dtype=like.dtype).triu_(start + 1)

"""The peer of the trainer: a hand-written training loop.

`PlainModel` is the same function as our enoki (pre-norm, rotary positions, QK-norm, GELU, untied head), in plain
PyTorch: one fused projection for q, k and v, whole logits, torch's cross-entropy. `PlainLoop` trains it with torch's
fused AdamW, clipping, and random windows of a memory-mapped array of token ids. It uses nothing of ours.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    """Attention and MLP."""

    def __init__(self, d_model: int, n_heads: int, mlp_dim: int):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model, bias=False), nn.LayerNorm(d_model, bias=False)
        self.q_norm, self.k_norm = (
            nn.LayerNorm(self.head_dim, bias=False),
            nn.LayerNorm(self.head_dim, bias=False),
        )
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up, self.down = nn.Linear(d_model, mlp_dim, bias=False), nn.Linear(mlp_dim, d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, D]; cos, sin [L, head_dim / 2]."""
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = _turn(self.q_norm(q), cos, sin), _turn(self.k_norm(k), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


class PlainModel(nn.Module):
    """The language model; returns the loss."""

    def __init__(
        self, d_model: int, n_layers: int, n_heads: int, mlp_dim: int, vocab_size: int, seq_len: int
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(PlainBlock(d_model, n_heads, mlp_dim) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        half = d_model // n_heads // 2
        angles = torch.arange(seq_len)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """tokens, targets [B, L] -> mean cross-entropy."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class PlainLoop:
    """Data, model and optimizer; `run(n)` makes n steps.

    `tokens` are ids, 1-D, memory-mapped or not; `dtype` is that of autocast, float32 for none.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: np.ndarray,
        *,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        lr: float = 1e-3,
    ):
        self.model = model.to(device)
        self.tokens, self.batch_size, self.seq_len, self.device, self.dtype = (
            tokens,
            batch_size,
            seq_len,
            device,
            dtype,
        )
        decayed = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), fused=True)
        self.random = np.random.default_rng(0)

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = self.random.integers(len(self.tokens) - self.seq_len - 1, size=self.batch_size)
        rows = [torch.from_numpy(self.tokens[i : i + self.seq_len + 1].astype(np.int64)) for i in starts]
        whole = torch.stack(rows)
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        return whole[:, :-1], whole[:, 1:]

    def run(self, steps: int) -> float:
        """Make `steps` steps; returns the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            inputs, targets = self.batch()
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                loss = self.model(inputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

"""Small texts, a GPT as people write it, and its loss: what the studies on one CPU share."""

import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEXT = [Path("tinyshakespeare.txt")]
"""Where tiny Shakespeare lies."""


@cache
def library_tokens() -> tuple[Tensor, Tensor]:
    """Python's standard library in 512 byte-pair tokens: to train on, to measure on."""
    from danalab.data import open_data

    parts = (open_data("stdlib", "bpe-512", split) for split in ("train", "val"))
    training, held_out = (
        torch.from_numpy(part.store.read(0, part.n_tokens).astype("int64")) for part in parts
    )
    return training, held_out


@cache
def shakespeare() -> tuple[Tensor, Tensor]:
    """Characters of tiny Shakespeare as ids: the first 90% to train on, the rest to measure on."""
    text = TEXT[0].read_text(encoding="utf-8")
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([ids[character] for character in text])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:]


def cross_entropy(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def training_loss(
    model: nn.Module, tokens: Tensor, seed: int, batch: int, length: int
) -> Callable[[], Tensor]:
    """The loss on the next batch of random windows."""
    draw, offsets = torch.Generator().manual_seed(seed), torch.arange(length + 1)
    return lambda: cross_entropy(
        model, tokens[torch.randint(len(tokens) - length, (batch, 1), generator=draw) + offsets]
    )


def held_out_loss(model: nn.Module, tokens: Tensor, length: int, windows: int) -> float:
    """Mean loss on random windows, the same in every run."""
    starts = torch.randint(len(tokens) - length, (windows, 1), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        each = [float(cross_entropy(model, tokens[s + torch.arange(length + 1)])) for s in starts.split(64)]
    return statistics.fmean(each)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        attended = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallGPT(nn.Module):
    """A GPT as people write it: learned positions, torch's modules, weights of deviation 0.02, tied head or not."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int, tied: bool):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.emb.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

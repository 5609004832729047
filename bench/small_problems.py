"""Three small problems on which optimizers are tuned in seconds, and a fourth to check what was found.

transformer   the next byte of Python's standard library, two pre-norm blocks of width 32 on 32 bytes
mlp           the same byte from the eight before it, one hidden layer (Bengio et al. 2003)
teacher       the labels that a random network draws for Gaussian inputs; an MLP of two hidden layers
recurrent     as the transformer, by a GRU of width 32; no setting was chosen on it
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.showcase.problems import Task

BYTES = 128
"""The alphabet: ASCII."""
HELD_OUT = 100_000
"""Bytes of other files than those that are trained on."""
BATCH = {"transformer": 16, "mlp": 64, "teacher": 64, "recurrent": 16}
"""Sequences or examples in a batch, by problem."""

Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""Generator -> (inputs, targets)."""


def task(problem: str, batch: int, seed: int) -> Task:
    """A problem with drawn weights and its own stream of batches; measured by the loss on a fixed held-out batch."""
    draws, measured_on = _batches(problem)
    torch.manual_seed(seed)
    model, draw, generator = MODELS[problem](), draws(batch), torch.Generator().manual_seed(1000 + seed)

    def loss() -> Tensor:
        inputs, targets = draw(generator)
        return F.cross_entropy(model(inputs), targets)

    def measure() -> float:
        with torch.no_grad():
            inputs, targets = measured_on(torch.Generator().manual_seed(12345))
            return F.cross_entropy(model(inputs), targets).item()

    return Task(model, loss, measure)


@cache
def _batches(problem: str) -> tuple[Callable[[int], Draw], Draw]:
    """(size of a batch -> batches, the held-out batch)."""
    if problem == "teacher":
        return _labels, _labels(16384)
    train, held_out = _text()
    if problem == "mlp":
        return (_windows(train, 8, lambda y: y[:, -1]), _windows(held_out, 8, lambda y: y[:, -1])(8192))
    return (_windows(train, 32, lambda y: y.flatten()), _windows(held_out, 32, lambda y: y.flatten())(256))


class Block(nn.Module):
    """A pre-norm transformer block with heads of 16."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """[batch, 32] -> logits [batch x 32, BYTES]."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed, self.positions = nn.Embedding(BYTES, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width))
        self.head = nn.Linear(width, BYTES, bias=False)
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.positions.weight)).flatten(0, 1)


class Recurrent(nn.Module):
    """[batch, 32] -> logits [batch x 32, BYTES]."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed, self.gru = nn.Embedding(BYTES, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(tokens))[0]).flatten(0, 1)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(BYTES, 16), nn.Flatten(1), nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, BYTES, bias=False)
    )


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


MODELS = {"transformer": Transformer, "mlp": _mlp, "teacher": _classifier, "recurrent": Recurrent}


def _windows(text: Tensor, length: int, targets: Callable[[Tensor], Tensor]) -> Callable[[int], Draw]:
    offsets = torch.arange(length + 1)

    def of_size(count: int) -> Draw:
        def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            windows = text[torch.randint(len(text) - length, (count, 1), generator=generator) + offsets]
            return windows[:, :-1], targets(windows[:, 1:])

        return draw

    return of_size


def _labels(count: int) -> Draw:
    teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
    fixed = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in teacher.parameters():
            p.normal_(std=3 / p.shape[-1] ** 0.5, generator=fixed)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 20, generator=generator)
        with torch.no_grad():
            return x, teacher(x).div(2).softmax(-1).multinomial(1, generator=generator)[:, 0]

    return draw


@cache
def _text() -> tuple[Tensor, Tensor]:
    from danalab.data.sources.text import StdlibSource

    parts = ["".join(c for c in text if ord(c) < BYTES) for text in StdlibSource().iter_documents()]
    train, held_out = "".join(parts[1::10] + parts[2::10])[:2_000_000], "".join(parts[0::10])[:HELD_OUT]
    return _bytes(train), _bytes(held_out)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()

"""Exercise 2, a solution: the hybrid optimizer on a small vision transformer.

    python examples/exercises/vision_transformer.py

The images are made here: 16 x 16 pixels of noise with a grating in one of four orientations. A patch of 4 x 4 pixels is
a token. Matrices between hidden features go to orthogonalised momentum; the patch embedding, the positions, the class
token, the norms and the head go to the element-wise rule.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

PIXELS, PATCH, CLASSES = 16, 4, 4
STEPS, BATCH = 80, 64


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x [images, tokens, width]."""
        images, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(images, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches -> blocks -> the class token -> logits."""

    def __init__(self, width: int = 32, depth: int = 2, heads: int = 2):
        super().__init__()
        tokens = (PIXELS // PATCH) ** 2
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [images, classes] of images [images, 1, pixels, pixels]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))

    def parameter_kinds(self) -> dict[str, str]:
        """Kind of each parameter. Names alone would make matrices of the patch embedding and the positions."""
        kinds = {}
        for name, p in self.named_parameters():
            if p.ndim < 2:
                kinds[name] = "vector"
            elif name == "head.weight":
                kinds[name] = "head"
            else:
                kinds[name] = "matrix" if name.startswith("blocks.") else "embedding"
        return kinds


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Images [BATCH, 1, PIXELS, PIXELS] and orientations [BATCH]: a pure function of the step."""
    draw = torch.Generator().manual_seed(step)
    labels = torch.randint(CLASSES, (BATCH,), generator=draw)
    phase = 2 * math.pi * torch.rand(BATCH, 1, 1, generator=draw)
    angle = (math.pi * labels / CLASSES)[:, None, None]
    line = torch.arange(PIXELS) - PIXELS / 2
    wave = torch.cos(0.9 * (line[:, None] * torch.sin(angle) + line * torch.cos(angle)) + phase)
    noise = torch.randn(BATCH, PIXELS, PIXELS, generator=draw)
    return (wave + 1.0 * noise)[:, None], labels


def train(name: str = "muon", lr: float = 0.01, steps: int = STEPS) -> tuple[VisionTransformer, list[float]]:
    """The trained model and the loss of each step."""
    torch.manual_seed(0)
    model = VisionTransformer()
    optimizer = build_optimizer(name, model, lr=lr)
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", steps, warmup_steps(steps)))
    losses = []
    for step in range(steps):
        images, labels = batch(step)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def accuracy(model: nn.Module, batches: int = 8) -> float:
    """Share of right answers on images that no step has used."""
    right = 0
    for number in range(batches):
        images, labels = batch(1_000_000 + number)
        right += int((model(images).argmax(1) == labels).sum())
    return right / (batches * BATCH)


def main() -> None:
    for name, lr in (("adamw", 3e-3), ("muon", 0.02), ("manau", 3e-3)):
        model, losses = train(name, lr)
        print(f"{name:6} loss {losses[0]:.3f} -> {losses[-1]:.3f}   accuracy {accuracy(model):.2f}")


if __name__ == "__main__":
    main()

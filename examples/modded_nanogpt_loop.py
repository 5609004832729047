"""The optimizer part of a track-3 script of modded-nanogpt: AdamW's groups with ADana, Muon's matrices with DanaMuon.

    python examples/modded_nanogpt_loop.py      # its loop (records/track_3_optimization, 2026), a stand-in of its model

The records' rule forbids such imports: paste base, dana, groups, newton_schulz and muon of danalab/optim.
"""

from __future__ import annotations

import torch
from torch import nn

from danalab.optim import ADana, DanaMuon

STEPS = 40


class GPT(nn.Module):
    """Its names, without attention."""

    def __init__(self):
        super().__init__()
        self.embed, self.proj = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 32)) for _ in range(2))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).relu()
        return nn.functional.cross_entropy(self.proj(x), targets)


def build_optimizers(model: GPT, steps: int) -> list[torch.optim.Optimizer]:
    """ADana and DanaMuon; every group has its peak rate as `peak_lr`."""
    run = {"omega": 4.0, "horizon": steps}
    embedding = {"params": [model.embed.weight], "lr": 0.02, "weight_decay": 0.0}
    vectors = {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}
    matrices = {"params": [p for p in model.blocks.parameters() if p.ndim >= 2], "kind": "matrix"}
    others = [embedding, vectors, {"params": [model.proj.weight]}]
    return [ADana(others, lr=0.005, **run), DanaMuon([matrices], lr=0.02, **run)]


def set_rates(optimizers: list[torch.optim.Optimizer], step: int, steps: int, cooldown: float = 0.7) -> None:
    """A stable rate, then a linear decay to zero over the last `cooldown` of the run."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * min(1.0, (1 - step / steps) / cooldown)


if __name__ == "__main__":
    model, tokens = GPT(), torch.arange(64)
    optimizers = build_optimizers(model, STEPS)
    for step in range(STEPS):
        set_rates(optimizers, step, STEPS)
        loss = model(tokens, (7 * tokens + 3) % 64)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        print(f"step {step + 1:3}  loss {loss:.3f}")

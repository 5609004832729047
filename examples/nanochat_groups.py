"""DanaMuon in nanochat: groups with rates of their own, in one optimizer whose rates its trainer sets.

    python examples/nanochat_groups.py      # a stand-in of nanochat's model (2026: `GPT.setup_optimizer`) and its loop

Return `setup_optimizer(self, steps)` from nanochat's method of that name. Its loop scales every group's `initial_lr`,
and sets momentum and weight decay of groups of `kind` "muon": matrices are of another kind here, which keeps the
log-time momentum and the decay from omega and the run's length.
"""

from __future__ import annotations

import torch
from torch import nn

from danalab.optim import build_optimizer

STEPS = 40


def setup_optimizer(model: nn.Module, steps: int, matrix_lr: float = 0.02) -> torch.optim.Optimizer:
    """Groups as nanochat's; rates of what is no matrix follow 1 / sqrt(width), from those of width 768."""
    scale = (model.transformer.wte.weight.shape[1] / 768) ** -0.5
    groups = [
        {"kind": "head", "params": [*model.lm_head.parameters()], "lr": 0.004 * scale},
        {
            "kind": "embedding",
            "params": [model.transformer.wte.weight],
            "lr": 0.02 * scale,
            "weight_decay": 0.0,
        },
        {"kind": "vector", "params": [model.resid_lambdas], "lr": 0.005, "weight_decay": 0.0},
        {"kind": "matrix", "params": [*model.transformer.h.parameters()], "lr": matrix_lr},
    ]
    optimizer = build_optimizer("dana-muon", groups, lr=matrix_lr, omega=4.0, horizon=steps)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # as nanochat's own method does
    return optimizer


class GPT(nn.Module):
    """nanochat's names, without attention."""

    def __init__(self):
        super().__init__()
        blocks = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(64, 32), "h": blocks})
        self.lm_head, self.resid_lambdas = nn.Linear(32, 64, bias=False), nn.Parameter(torch.ones(2))

    def forward(self, tokens, targets):
        x = self.transformer.wte(tokens)
        for block, scale in zip(self.transformer.h, self.resid_lambdas, strict=True):
            x = scale * x + block(nn.functional.rms_norm(x, x.shape[-1:])).relu()
        return nn.functional.cross_entropy(self.lm_head(nn.functional.rms_norm(x, x.shape[-1:])), targets)


if __name__ == "__main__":
    model, tokens = GPT(), torch.arange(64)
    optimizer = setup_optimizer(model, STEPS)
    for step in range(STEPS):
        loss = model(tokens, (7 * tokens + 3) % 64)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, 2 * (1 - step / STEPS))
            if group["kind"] == "muon":
                group["momentum"], group["weight_decay"] = 0.95, 0.2
        optimizer.step()
        model.zero_grad(set_to_none=True)
        print(f"step {step + 1:3}  loss {loss:.3f}")

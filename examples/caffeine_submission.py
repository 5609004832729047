"""DanaMuon as an entry of cybertronai/caffeine: an attention layer learns a random one in 400 steps, on one CPU thread.

    python examples/caffeine_submission.py           # a small stand-in of the task, in seconds
    python examples/caffeine_submission.py --board   # the board's sizes, its AdamW and this entry: minutes each

The board takes a file with a class `Submission`, calls `Submission(model.parameters())` and `step()`, and ranks by the
squared error on held-out data after the last step. A schedule must therefore live inside the optimizer.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

from danalab.optim import DanaMuon


class Submission(DanaMuon):
    def __init__(self, params, steps: int = 400, lr: float = 0.1):
        super().__init__(params, lr=lr, normalise=None)
        self.steps, self.taken = steps, 0
        self.peaks = [group["lr"] for group in self.param_groups]

    def step(self, closure=None):
        cosine = (1 + math.cos(math.pi * self.taken / self.steps)) / 2
        for group, peak in zip(self.param_groups, self.peaks, strict=True):
            group["lr"] = peak * cosine
        self.taken += 1
        return super().step(closure)


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def final_error(make, width: int, length: int, samples: int, batch: int, steps: int) -> float:
    """Mean squared error on held-out sequences of a student trained on the outputs of a frozen teacher."""
    teacher, draw = Attention(width), seeded(1729)
    for p in teacher.parameters():
        p.data.uniform_(-1, 1, generator=draw)
    x = torch.randn(samples, length, width, generator=seeded(271828))
    held_out = torch.randn(samples // 4, length, width, generator=seeded(161803))
    with torch.no_grad():
        y, held_out_y = teacher(x), teacher(held_out)
    rows = torch.randint(0, samples, (steps, batch), generator=seeded(141421))
    torch.manual_seed(314159)
    student = Attention(width)
    optimizer = make(student.parameters())
    for i in range(steps):
        loss = nn.functional.mse_loss(student(x[rows[i]]), y[rows[i]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % max(1, steps // 4) == 0:
            print(f"step {i}: loss {loss.item():.4f}")
    with torch.no_grad():
        return nn.functional.mse_loss(student(held_out), held_out_y).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--board", action="store_true", help="the board's sizes, and its AdamW first")
    if parser.parse_args().board:
        torch.set_num_threads(1)
        sizes = {"width": 128, "length": 64, "samples": 8192, "batch": 512, "steps": 400}
        adamw = final_error(
            lambda params: torch.optim.AdamW(params, 0.01, (0.9, 0.99), weight_decay=0.0), **sizes
        )
        print(f"AdamW of the board: final loss {adamw:.6g}")
    else:
        sizes = {"width": 24, "length": 12, "samples": 1024, "batch": 64, "steps": 200}
    final = final_error(lambda params: Submission(params, steps=sizes["steps"]), **sizes)
    print(f"DanaMuon with a cosine inside: final loss {final:.6g}")

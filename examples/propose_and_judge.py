"""A loop that proposes settings and a new rule, has each judged against ADana, and stops honestly.

    python examples/propose_and_judge.py             # eleven proposals; about an hour of two CPU cores
    python examples/propose_and_judge.py --quick     # the same loop on three of them and runs that are far too short

Each proposal is a question of its own, so each gets an equal share of the error that all of them together may have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from danalab.experiments.judge import judge
from danalab.experiments.settings import JudgeConfig

ALPHA = 0.05
"""Probability that any of the proposals is called better though none is."""
SETTINGS = [
    f"adana:kappa={kappa},delta={delta}" for kappa in (0.75, 0.8, 0.85, 0.9, 0.95) for delta in (4, 16)
]


class ClippedMomentum(torch.optim.Optimizer):
    """The new rule: momentum over its own root mean square, tensor by tensor."""

    def __init__(self, params, lr: float = 1e-3, beta: float = 0.95):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["beta"])
                p.add_(average / average.square().mean().sqrt().clamp_min(1e-12), alpha=-group["lr"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ledger", type=Path, default=Path("judge"))
    flags = parser.parse_args()
    proposals = [*(SETTINGS[::5] if flags.quick else SETTINGS), f"{__file__}:ClippedMomentum"]
    short = (
        {"steps": 8, "trials": 1, "budget": "8runs", "track": "images"} if flags.quick else {"track": "char"}
    )
    better = []
    for proposal in proposals:
        config = JudgeConfig(
            baseline="adana", contender=proposal, alpha=ALPHA / len(proposals), ledger=flags.ledger, **short
        )
        verdict = judge(config, lambda line: print("   ", line, file=sys.stderr))
        print("\n".join(verdict.lines()), flush=True)
        if verdict.decision == "better":
            better.append(verdict)
    if not better:
        print(f"None of {len(proposals)} proposals is better than ADana. That is the result.")
    for verdict in sorted(better, key=lambda verdict: verdict.effect):
        print(f"{verdict.contender}: {verdict.effect:+.4f} ({verdict.low:+.4f} to {verdict.high:+.4f})")


if __name__ == "__main__":
    main()

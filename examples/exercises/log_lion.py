"""Exercise 1, a solution: Lion in logarithmic time.

    python examples/exercises/log_lion.py

    a = delta / (delta + t)      p <- k (p - lr sign(m + fast (g - m)))      m <- m + a (g - m)

The direction weighs the new gradient by `fast`, the average by a(t); Lion has constants for both.
Source of Lion: Chen et al. 2023, arXiv 2302.06675.
"""

import torch
from torch import nn

from danalab.optim.base import Optimizer, Rule, decay_factor


def log_lion_update(p, g, m, *, lr, gain, fast, decay_factor=1.0):
    """The new (p, m). Pure: the arguments stay as they are."""
    step = torch.sign(m + fast * (g - m))
    return decay_factor * (p - lr * step), m + gain * (g - m)


def log_lion_scalars(group, t):
    """Scalars of step t; the names are the keyword arguments of `log_lion_update`."""
    return {
        "lr": float(group["lr"]),
        "gain": group["delta"] / (group["delta"] + t),
        "fast": group["fast"],
        "decay_factor": decay_factor(group, t),
    }


class LogLion(Optimizer):
    """Lion in logarithmic time: the sign of a mixture of the gradient and its average.

    Args:
        params: parameters, groups or a model.
        lr: learning rate.
        delta: the average covers about the last 1/delta of the run.
        fast: weight of the new gradient in the direction.
        weight_decay: independent weight decay, lambda(0).
        wd_ts: time scale on which it falls [steps]; none = constant.
        omega: in place of weight_decay: lambda(t) = omega / (wd_ts + t).
        horizon: length of the run, with omega: wd_ts is a tenth of it [steps].
    """

    rule = Rule(log_lion_update, log_lion_scalars, ("exp_avg",))
    decay_bound = 1.0  # it has independent weight decay

    def __init__(
        self, params, lr=1e-3, *, delta=8.0, fast=0.1, weight_decay=0.0, wd_ts=None, omega=None, horizon=None
    ):
        decay = {"weight_decay": weight_decay, "wd_ts": wd_ts, "omega": omega, "horizon": horizon}
        super().__init__(params, lr=lr, delta=delta, fast=fast, **decay)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = torch.sin(x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = LogLion(model, lr=2e-3, omega=4.0, horizon=300)
    for step in range(300):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == 299:
            print(f"step {step:3}  loss {loss:.3f}")


if __name__ == "__main__":
    main()

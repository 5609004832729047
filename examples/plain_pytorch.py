"""ADana in a training loop of your own, with a schedule, a checkpoint, and an exact resume.

    python examples/plain_pytorch.py

The model predicts a byte of Python source from the eight before it; on a CPU it takes seconds.
"""

from __future__ import annotations

import inspect
import io

import torch
from torch import nn

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

STEPS, CONTEXT, BATCH = 300, 8, 64

text = torch.tensor(list(inspect.getsource(nn.Module).encode()))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A pure function of the step."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step))
    windows = text[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


def build():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 256)
    )
    # Weight decay falls as omega / t and needs the length of the run; embeddings and biases are not decayed.
    # lr is the peak: weight decay follows lr(t) / peak, so give the peak here and let the schedule scale it.
    optimizer = build_optimizer("adana", model, lr=3e-3, omega=4.0, horizon=STEPS)
    scheduler = lr_scheduler(optimizer, get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS)))
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, first: int, last: int) -> None:
    for step in range(first, last):
        inputs, targets = batch(step)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == last - 1:
            now = optimizer.coefficients()  # of the last step, at no cost
            print(
                f"step {step:3}  loss {loss:.3f}  lr {now['lr']:.1e}  beta {now['beta']:.4f}  alpha {now['alpha']:.2f}"
            )


if __name__ == "__main__":
    parts = build()
    train(*parts, 0, 150)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)  # the step count t is in the optimizer's state
    train(*parts, 150, STEPS)

    print("resumed from the checkpoint at step 150:")
    file.seek(0)
    again = build()
    for part, state in zip(again, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*again, 150, STEPS)
    same = all(torch.equal(p, q) for p, q in zip(parts[0].parameters(), again[0].parameters(), strict=True))
    print(f"the weights are equal bit for bit: {same}")

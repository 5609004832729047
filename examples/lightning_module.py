"""ADana in a LightningModule: only `configure_optimizers` changes.

python examples/lightning_module.py
"""

from __future__ import annotations

import inspect
import logging

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

CONTEXT, STEPS = 8, 200

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # its hints about workers and loggers


class NextByte(L.LightningModule):
    """Predicts a byte of Python source from the eight before it."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Embedding(256, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 256)
        )

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        if self.global_step % 40 == 0 or self.global_step == STEPS - 1:
            print(f"step {self.global_step:3}  loss {loss:.3f}")
        return loss

    def configure_optimizers(self):
        optimizer = build_optimizer("adana", self, lr=3e-3, omega=4.0, horizon=STEPS)
        schedule = get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS))
        # "step": the schedule counts optimizer steps; Lightning's default would advance it once per epoch.
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": lr_scheduler(optimizer, schedule), "interval": "step"},
        }


def windows() -> DataLoader:
    text = torch.tensor(list(inspect.getsource(nn.Module).encode()))
    rows = text.unfold(0, CONTEXT + 1, 1)
    return DataLoader(TensorDataset(rows[:, :-1], rows[:, -1]), batch_size=64, shuffle=True)


def trainer(steps: int = STEPS) -> L.Trainer:
    return L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    trainer().fit(NextByte(), windows())

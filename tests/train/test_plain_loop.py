"""A whole run against a loop that anyone would write, in float64: gradients, clipping, schedule, AdamW, rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from danalab.data import open_dataset
from danalab.models import build_model
from danalab.optim import build_optimizer
from danalab.optim.schedules import get_schedule
from danalab.train.config.resolve import resolve
from danalab.train.run.open import open_run
from danalab.train.trainer import run_training

STEPS, WARMUP, LR, DECAY, CLIP, Z_LOSS = 12, 4, 3e-3, 0.1, 0.1, 1e-2


@pytest.mark.sample(1)
@pytest.mark.parametrize(("batch_size", "acc_steps"), [(6, 1), (2, 3), (1, 6)])
def test_a_run_is_the_plain_loop_whatever_its_micro_batches(tiny, data, batch_size, acc_steps):
    config = tiny(
        opt="adamw", batch_size=batch_size, acc_steps=acc_steps, iterations=STEPS, warmup_steps=WARMUP, lr=LR,
        weight_decay=DECAY, beta1=0.9, beta2=0.95, grad_clip=CLIP, z_loss=Z_LOSS, log_interval=1, eval_interval=0,
    )  # fmt: skip
    resolved = resolve(config, open_dataset(data))
    rows = open_run(run_training(config).folder).metrics()

    model = build_model(resolved.model, init=resolved.init, seed=config.seed).double()
    decayed = build_optimizer(
        "adamw", model, lr=LR, weight_decay=DECAY
    ).param_groups  # which of them are decayed
    groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in decayed]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
    batches = open_dataset(data).batches(seed=config.data_seed, global_batch=6, seq_len=16)
    schedule = get_schedule("cos_inf", STEPS, WARMUP)
    for step, row in enumerate(rows):
        inputs, targets = batches[step]
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        (loss + Z_LOSS * torch.logsumexp(logits, -1).square().mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = LR * schedule(step)
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        way = torch.linalg.vector_norm(torch.cat([p.detach().flatten() for p in model.parameters()]) - before)
        assert row["lr"] == LR * schedule(step)
        assert row["train/loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert row["grad_norm"] == pytest.approx(float(norm), rel=2e-6)
        assert row["update_norm"] == pytest.approx(float(way), rel=1e-4)
    assert len(rows) == STEPS
    assert min(row["grad_norm"] for row in rows) > CLIP  # so that every step was clipped
    found = torch.cat(
        [p.detach().flatten() for p in open_run(config.run_dir or "").load_model().model.parameters()]
    )
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)

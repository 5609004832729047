"""Model, loss, clipping, optimizer and schedule together follow the golden training runs step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from danalab.optim import build_optimizer, get_schedule
from models.weights import canonical_arrays


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["enoki_tiny_adana", "qwen3_gated_tiny_dana_star_mk4"])
def test_training_follows_the_golden_run(
    load_golden: Callable[..., Any], golden: Path, golden_index: dict[str, Any], name: str, dtype: torch.dtype
):
    run = golden_index["train_trajectories"]["runs"][name]
    with np.load(golden / "train_trajectories.npz") as file:
        arrays = {
            key.removeprefix(f"{name}/"): array for key, array in file.items() if key.startswith(f"{name}/")
        }
    model = load_golden(run["model"], dtype).model
    wanted = ("delta", "kappa", "clipsnr", "weight_decay", "wd_ts")
    settings = {
        key: value for key, value in run["hyperparameters"].items() if key in wanted and value is not None
    }
    optimizer = build_optimizer(run["optimizer"], model, lr=run["peak_lr"], **settings)
    schedule = get_schedule("cos_inf", run["n_steps"], run["schedule"]["warmup"])
    z_loss, losses, norms = run["z_loss_coeff"], [], []

    def loss(rows: np.ndarray) -> Tensor:
        tokens = torch.from_numpy(rows.astype(np.int64))
        ce, lse2 = model(tokens[:, :-1], tokens[:, 1:], z_loss=z_loss)
        return ce + z_loss * lse2

    for step, rows in enumerate(arrays["token_rows"]):
        for group in optimizer.param_groups:
            group["lr"] = run["peak_lr"] * schedule(step)
        optimizer.zero_grad()
        value = loss(rows)
        value.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run["grad_clip"])))
        optimizer.step()
        losses.append(value.item())

    exact = dtype == torch.float64
    np.testing.assert_allclose(losses, arrays["loss_f64"], rtol=0, atol=1e-7 if exact else 2e-5)
    np.testing.assert_allclose(norms, arrays["grad_norm_f64"], rtol=1e-6 if exact else 1e-4)
    last = loss(arrays["token_rows"][0]).item()
    assert last == pytest.approx(run["loss_on_first_batch_after_training_f64"], abs=1e-7 if exact else 2e-5)
    weights = canonical_arrays(model)
    for key, want in arrays.items():
        if key.startswith("final/"):
            got = weights[key.removeprefix("final/")].double()
            torch.testing.assert_close(
                got, torch.from_numpy(want).double(), rtol=0, atol=1e-6 if exact else 2e-5
            )

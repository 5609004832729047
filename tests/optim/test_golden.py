"""Both ways to compute a step on a CPU reproduce trajectories measured on the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danalab.optim.adamw import AdamWDecayingWD
from danalab.optim.ademamix import AdEMAMix, AdEMAMixDecayingWD
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden"
INDEX = json.loads((FOLDER / "golden_index.json").read_text())["optimizers"]
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw-decaying-wd": AdamWDecayingWD,
    "ademamix": AdEMAMix,
    "ademamix-decaying-wd": AdEMAMixDecayingWD,
    "adana": ADana,
    "dana-mk4": DanaMK4,
    "dana-star": DanaStar,
    "dana-star-mk4": DanaStarMK4,
}
ELSEWHERE = ("muon", "d-muon", "manau")  # test_muon_golden.py
CASES = [case for case in INDEX["cases"] if case["optimizer"] in OPTIMIZERS]
OURS = {"epsilon": "eps", "gamma_3_factor": "gamma3"}
STATE = {"state_m_exact": "exp_avg", "state_v_exact": "exp_avg_sq", "state_tau_exact": "tau"}
STATE |= {"state_m_fast_exact": "exp_avg", "state_m_slow_exact": "exp_avg_slow"}


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    settings = {OURS.get(key, key): value for key, value in case["hyperparameters"].items()}
    if not settings.pop("wd_decaying", False):
        settings.pop("wd_ts", None)
    if settings.get("clipsnr") is None:
        settings.pop("clipsnr", None)
    return settings


@pytest.mark.sample(30)
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_trajectories_equal_the_reference(case, fused, dtype):
    inputs, want = np.load(FOLDER / "optimizers_inputs.npz"), np.load(FOLDER / case["file"])
    shapes = {entry["name"]: entry["shape"] for entry in INDEX["param_sets"][case["param_set"]]}
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    start, grads = (torch.tensor(inputs[case["inputs"] + key], dtype=dtype) for key in ("/params0", "/grads"))
    present = inputs[case["inputs"] + "/present"]
    parts = start.split(sizes)
    named = {
        name: part.view(shape).clone() for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    params = [p.requires_grad_() for p in named.values()]
    groups = [
        {"params": [p for name, p in named.items() if name not in case["no_decay_params"]]},
        {"params": [named[name] for name in case["no_decay_params"]], "weight_decay": 0.0},
    ]
    build = OPTIMIZERS[case["optimizer"]]
    optimizer = build(
        [g for g in groups if g["params"]], lr=case["peak_lr"], fused=fused, **settings_of(case)
    )
    tight = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 5e-5, "atol": 5e-6}
    for step, lr in enumerate(inputs[f"schedule_{case['schedule']}/lr"], 1):
        for group in optimizer.param_groups:
            group["lr"] = float(lr)
        for p, g, there in zip(params, grads[step - 1].split(sizes), present[step - 1], strict=True):
            p.grad = g.view_as(p).clone() if there else None
        optimizer.step()
        if step in INDEX["snapshot_steps"]:
            found = torch.cat([p.detach().flatten() for p in params]).double().numpy()
            snapshot = want["params_exact"][case["row"], INDEX["snapshot_steps"].index(step)]
            np.testing.assert_allclose(found, snapshot, **tight, err_msg=f"step {step}")
    if dtype == torch.float64:
        for golden_name, name in STATE.items():
            if golden_name in want:
                found = torch.cat([optimizer.state[p][name].flatten() for p in params]).numpy()
                stored = want[golden_name][case["row"]]
                there = ~np.isnan(stored)  # without a fast rate there is no fast momentum to compare
                np.testing.assert_allclose(found[there], stored[there], rtol=1e-8, atol=1e-14)


def test_every_golden_case_is_compared():
    assert len(INDEX["cases"]) == 155
    assert {case["optimizer"] for case in INDEX["cases"]} == {*OPTIMIZERS, *ELSEWHERE}
    assert all((FOLDER / case["file"]).is_file() for case in INDEX["cases"])


def test_first_step_by_hand():
    p = torch.ones(1, dtype=torch.float64, requires_grad=True)
    p.grad = torch.full_like(p, 0.3)
    ADana([p], lr=0.1, fused=False).step()
    assert p.item() == pytest.approx(0.6950418763928092, abs=1e-15)

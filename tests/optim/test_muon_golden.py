"""Muon, D-Muon and Manau reproduce trajectories measured on the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danalab.optim.groups import split_group
from danalab.optim.muon import DMuon, Manau, Muon

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden"
INDEX = json.loads((FOLDER / "golden_index.json").read_text())["optimizers"]
CASES = [case for case in INDEX["cases"] if case["optimizer"] in ("muon", "d-muon", "manau")]


def build(case: dict[str, Any], named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    h, lr = case["hyperparameters"], case["peak_lr"]
    common = {key: h[key] for key in ("momentum", "nesterov")}
    if case["optimizer"] == "muon":
        groups = split_group({"params": named})
        for group in groups:
            group["ns_steps"] = h["ns_steps"]
            if group["kind"] != "matrix":
                group |= {"lr": h["adamw_lr"], "weight_decay": h["adamw_wd"]}
        return Muon(groups, lr, eps=h["adamw_eps"], betas=h["adamw_betas"], **common)
    common.update(weight_decay=h["weight_decay"], matched_rms=h["matched_adamw_rms"])
    if case["optimizer"] == "d-muon":
        groups = [{"params": named, "ns_steps": h["ns_steps"]}]
        return DMuon(groups, lr, betas=h["adamw_betas"], eps=h["adamw_eps"], **common)
    family = {key: h[key] for key in ("dana_momentum", "delta", "kappa", "clipsnr")}
    wd_ts = h["wd_ts"] if h["wd_decaying"] else None
    return Manau(named, lr, eps=h["epsilon"], wd_ts=wd_ts, **family, **common)


def state_vector(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.nn.Parameter]], key: str
) -> np.ndarray:
    """The state of all parameters in a row; NaN where there is none."""
    parts = []
    for _, p in named:
        value = optimizer.state[p].get(key)
        parts.append(np.full(p.numel(), np.nan) if value is None else value.double().numpy().ravel())
    return np.concatenate(parts)


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_trajectories_equal_the_reference(case, dtype):
    inputs, want = np.load(FOLDER / "optimizers_inputs.npz"), np.load(FOLDER / case["file"])
    start, grads = (torch.tensor(inputs[case["inputs"] + key], dtype=dtype) for key in ("/params0", "/grads"))
    factors = inputs[f"schedule_{case['schedule']}/lr"] / case["peak_lr"]
    shapes = {entry["name"]: entry["shape"] for entry in INDEX["param_sets"][case["param_set"]]}
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    named = [
        (name, torch.nn.Parameter(part.view(shape)))
        for (name, shape), part in zip(shapes.items(), start.clone().split(sizes), strict=True)
    ]
    optimizer = build(case, named)
    tight = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 5e-5, "atol": 5e-6}
    for step, factor in enumerate(factors):
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        for (_, p), g in zip(named, grads[step].split(sizes), strict=True):
            p.grad = g.view_as(p)
        optimizer.step()
        if step + 1 in INDEX["snapshot_steps"]:
            found = torch.cat([p.detach().flatten() for _, p in named]).double().numpy()
            expected = want["params_exact"][case["row"], INDEX["snapshot_steps"].index(step + 1)]
            np.testing.assert_allclose(found, expected, **tight, err_msg=f"after step {step + 1}")
    if dtype == torch.float64:
        keys = {"momentum": "momentum_buffer", "adam_m": "exp_avg", "adam_v": "exp_avg_sq"}
        keys |= {"m": "exp_avg", "v": "exp_avg_sq", "tau": "tau"}
        for key, mine in keys.items():
            if f"state_{key}_exact" in want:
                expected = want[f"state_{key}_exact"][case["row"]]
                np.testing.assert_allclose(
                    state_vector(optimizer, named, mine), expected, rtol=1e-8, atol=1e-14
                )

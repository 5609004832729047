"""One class for Muon, DanaMuon, nanochat's recipe and everything between, written apart from the library."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

Settings = dict[str, Any]

POLAR = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
QUINTIC = ((3.4445, -4.7750, 2.0315),) * 5


def orthogonal(x: Tensor, chain: Iterable[tuple[float, float, float]], safety: float) -> Tensor:
    tall = x.shape[0] > x.shape[1]
    y = x.mT if tall else x
    y = y / (y.norm() * safety + 1e-7)
    for a, b, c in chain:
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    return y.mT if tall else y


class Recipe(torch.optim.Optimizer):
    """Groups have a `kind`: matrix (orthogonalised momentum), embedding, head, vector (AdamW or Dana-Star-MK4)."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["t"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    (
                        self._matrix
                        if group["kind"] == "matrix"
                        else self._adam
                        if group["aux"] == "adamw"
                        else self._dana
                    )(p, p.grad, self.state[p], group)

    @staticmethod
    def _matrix(p: Tensor, g: Tensor, state: dict[str, Tensor], group: Settings) -> None:
        t, p, g = group["t"], p.flatten(1), g.flatten(1)
        m = state.setdefault("m", torch.zeros_like(p))
        if group["momentum"] is None:
            m.lerp_(g, group["delta"] / (group["delta"] + t))
            x = g + float(t) ** (1 - group["kappa"]) * m
        else:
            m.lerp_(g, 1 - group["momentum"])
            x = g.lerp(m, group["momentum"])
        if group["equilibrate"]:
            rows = x.norm(dim=1, keepdim=True)
            x = x * (rows.square().mean().sqrt() / rows.clamp_min(1e-10))
        u = orthogonal(x, POLAR, 1.01) if group["polar"] else orthogonal(x, QUINTIC, 1.0)
        if group["frobenius"]:
            u = u * (math.sqrt(min(u.shape)) / u.norm().clamp_min(1e-10))
        if group["normalise"] is not None:
            # the axis with more entries keeps a factor for each, as the shorter one is already even
            dim = 1 if u.shape[0] >= u.shape[1] else 0
            mean = u.square().mean(dim=dim, keepdim=True)
            if group["normalise"] == "normuon":
                v = state.setdefault("v", torch.zeros_like(mean))
                v.lerp_(mean, 1 - group["row_beta"])
                mean = v
            scaled = u / mean.sqrt().clamp_min(1e-10)
            u = scaled * (u.norm() / scaled.norm().clamp_min(1e-10))
        rows, columns = u.shape
        u = u * (
            0.2 * math.sqrt(max(rows, columns))
            if group["scale"] == "rms"
            else math.sqrt(max(1.0, rows / columns))
        )
        Recipe._apply(p, u, group)

    @staticmethod
    def _apply(p: Tensor, u: Tensor, group: Settings) -> None:
        if group["omega"] is not None and group["falling"]:
            strength = group["lr"] / group["peak"] * group["omega"] / (group["steps"] / 10 + group["t"])
        elif group["omega"] is not None:  # as DanaMuon has it
            strength = group["lr"] * min(group["omega"] / (group["peak"] * group["steps"]), 1.0)
        else:
            strength = group["lr"] * group["decay"]
        if strength:
            p.sub_(strength * (p * (p * u >= 0) if group["cautious"] else p))
        p.sub_(group["lr"] * u)

    @staticmethod
    def _adam(p: Tensor, g: Tensor, state: dict[str, Tensor], group: Settings) -> None:
        (beta1, beta2), t = group["betas"], group["t"]
        m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
        m.lerp_(g, 1 - beta1)
        v.lerp_(g * g, 1 - beta2)
        Recipe._apply(
            p, m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"]), {**group, "decay": 0.0}
        )

    @staticmethod
    def _dana(p: Tensor, g: Tensor, state: dict[str, Tensor], group: Settings) -> None:
        t, delta, kappa, eps = group["t"], group["delta"], group["kappa"], 1e-8
        m, v, tau = (state.setdefault(key, torch.zeros_like(p)) for key in ("m", "v", "tau"))
        a = delta / (delta + t)
        m.lerp_(g, a)
        v.lerp_(g * g, a)
        r = v.sqrt() + eps
        tau.lerp_(g.abs() / (g.abs() + r), a)
        c = tau.clamp_max(0.5)
        q = (c / (1 - c)).clamp_min(1 / (1 + t))
        n = q.sqrt() / r
        u = m.abs() * n
        long = ((tau * t).clamp_min(1.0) ** (1 - kappa) * u / q).clamp_max(2.0)
        Recipe._apply(p, n * g + m.sign() * (q * long + u), {**group, "decay": 0.0})


MATRIX = {
    "momentum": 0.95,
    "delta": 8.0,
    "kappa": 0.85,
    "equilibrate": False,
    "polar": False,
    "frobenius": False,
}
MATRIX |= {
    "normalise": None,
    "row_beta": 0.9,
    "scale": "rms",
    "cautious": False,
    "decay": 0.1,
    "omega": None,
    "falling": False,
}


def kinds(model: nn.Module) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {"embedding": [], "head": [], "matrix": [], "vector": []}
    seen: set[int] = set()
    heads = {
        id(module.weight)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in ("head", "lm_head") and hasattr(module, "weight")
    }
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                kind = (
                    "vector"
                    if p.ndim < 2
                    else "head"
                    if id(p) in heads
                    else "embedding"
                    if isinstance(module, nn.Embedding)
                    else "matrix"
                )
                found[kind].append(p)
    return found


def recipe(
    model: nn.Module,
    lr: float,
    steps: int,
    *,
    aux_scale: float = 1.0,
    aux_style: str = "dana",
    **settings: Any,
) -> torch.optim.Optimizer:
    """aux_style: dana (Dana-Star-MK4, DanaMuon's ratios), dana-kinds (the same at nanochat's rates), nanochat or adamw
    (AdamW, absolute rates), ratios (nanochat's, with rates in units of that of matrices)."""
    width = min(max(p.shape) if p.ndim else 1 for p in kinds(model)["matrix"])
    wide = (width / 768) ** -0.5
    common = {**MATRIX, "t": 0, "steps": steps, "aux": "adamw", "eps": 1e-8, **settings}
    groups = []
    for kind, params in kinds(model).items():
        group = {**common, "params": params, "kind": kind, "lr": lr}
        if kind != "matrix":
            if aux_style == "dana":
                group |= {"aux": "dana", "lr": lr * aux_scale * FACTORS[kind]}
            elif aux_style == "adamw":
                group |= {"lr": 0.004 * aux_scale, "betas": (0.9, 0.99), "omega": None}
            else:
                rate = {"embedding": 0.2 * wide, "head": 0.004 * wide, "vector": 0.01}[kind]
                rate = lr * RATIOS[kind] if aux_style == "ratios" else rate
                aux = "dana" if aux_style == "dana-kinds" else "adamw"
                betas = {"embedding": (0.8, 0.995), "head": (0.8, 0.96), "vector": (0.8, 0.95)}[kind]
                group |= {"lr": rate * aux_scale, "betas": betas, "eps": 1e-10, "omega": None, "aux": aux}
        group["peak"] = group["lr"]
        groups.append(group)
    return Recipe([group for group in groups if group["params"]], {})


RATIOS = {"embedding": 6.0, "head": 0.125, "vector": 0.1}
FACTORS = {"embedding": 0.25, "head": 0.25, "vector": 0.0625}
"""Rates of the kinds relative to that of matrices: DanaMuon's."""


NANOCHAT: Settings = {
    "aux_style": "nanochat",
    "momentum": 0.95,
    "equilibrate": True,
    "polar": True,
    "frobenius": True,
    "normalise": "normuon",
    "scale": "spectral",
    "cautious": True,
    "decay": 0.28,
}
"""Settings of `recipe`, but for rates."""

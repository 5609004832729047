"""One class for Muon, DanaMuon, nanochat's recipe and everything between, written apart from the library."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim.groups import parameter_kinds

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
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
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
        Recipe._apply(p, m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"]), group)

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
        falling = group["decay"] / (1 + t / group["steps"])
        Recipe._apply(p, n * g + m.sign() * (q * long + u), {**group, "decay": falling})


MATRIX: Settings = {
    "momentum": 0.95,
    "delta": 8.0,
    "kappa": 0.85,
    "equilibrate": False,
    "polar": False,
    "frobenius": False,
    "normalise": None,
    "row_beta": 0.9,
    "scale": "rms",
    "cautious": False,
    "decay": 0.1,
}


def kinds(model: nn.Module) -> dict[str, list[Tensor]]:
    """Parameters by the library's kinds; of tables, those alone that are a linear layer's weight, too, are `tied`."""
    found: dict[str, list[Tensor]] = {"embedding": [], "head": [], "tied": [], "matrix": [], "vector": []}
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    known = parameter_kinds(model)
    for name, p in model.named_parameters():
        is_table = known[name] in ("embedding", "tied")
        found[known[name] if not is_table else "tied" if id(p) in linear else "embedding"].append(p)
    return found


def recipe(
    model: nn.Module,
    lr: float,
    steps: int,
    *,
    aux_scale: float = 1.0,
    embedding_scale: float = 1.0,
    rest: str = "ratios",
    omega: float | None = None,
    **settings: Any,
) -> torch.optim.Optimizer:
    """rest: star (Dana-Star-MK4, as in DanaMuon), adamw (one absolute rate), nanochat (absolute rates by kind and
    width) or ratios (nanochat's in units of that of matrices). omega: matrices decay by omega over the run, and
    under star heads, too."""
    width = min(max(p.shape) for p in kinds(model)["matrix"])
    wide = (width / 768) ** -0.5
    common = {**MATRIX, "t": 0, "steps": steps, "eps": 1e-10, **settings}
    if omega is not None:
        common["decay"] = min(omega / (lr * steps), 1.0)
    groups = []
    for kind, params in kinds(model).items():
        group = {**common, "params": params, "kind": kind, "lr": lr, "aux": "adamw"}
        if kind != "matrix":
            group["betas"] = BETAS[kind]
            if rest != "star" or kind != "head":
                group["decay"] = 0.0
            if rest == "star":
                group |= {"aux": "dana", "lr": lr * aux_scale * STAR[kind]}
            elif rest == "adamw":
                group |= {"lr": 0.004 * aux_scale, "betas": (0.9, 0.99), "eps": 1e-8}
            elif rest == "nanochat":
                group["lr"] = NANOCHAT_RATES[kind] * aux_scale * (1.0 if kind == "vector" else wide)
            else:
                group["lr"] = lr * RATIOS[kind] * aux_scale
        if kind == "embedding":
            group["lr"] *= embedding_scale
        groups.append(group)
    return Recipe([group for group in groups if group["params"]], {})


BETAS = {"embedding": (0.8, 0.995), "tied": (0.8, 0.96), "head": (0.8, 0.96), "vector": (0.8, 0.95)}
NANOCHAT_RATES = {"embedding": 0.2, "tied": 0.2, "head": 0.004, "vector": 0.01}
RATIOS = {"embedding": 6.0, "tied": 2.0, "head": 0.125, "vector": 0.1}
STAR = {"embedding": 0.25, "tied": 0.25, "head": 0.25, "vector": 0.0625}
"""Rates of the kinds in units of that of matrices."""


NANOCHAT: Settings = {
    "rest": "nanochat",
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

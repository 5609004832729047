"""The arithmetic of the guide's moving figures (docs/_static/figures.js) in Python, for tests and static pictures."""

import numpy as np

METHODS = {
    "sgd": lambda t, kappa: (0.0, 0.3, 0.0),
    "momentum": lambda t, kappa: (0.9, 0.0, 0.03),
    "log": lambda t, kappa: (1 - 5.3 / (5.3 + t), 0.3, 0.15 * (1 + t) ** -kappa),
}
"""Name -> at step t what the momentum keeps, the weight of the fresh gradient, and that of the momentum."""


def schedule(delta: float, kappa: float, t: float) -> dict[str, float]:
    """ADana's beta, alpha and memory [steps] at step t."""
    return {"beta": t / (delta + t), "alpha": (1 + t) ** (1 - kappa), "memory": (delta + t) / delta}


def features(alpha: float, beta: float, batch: int, method: str, steps: int) -> list[float]:
    """Expected loss on power-law features, by the exact second moments of each mode; ends where it diverges."""
    j = np.arange(1, 101.0)
    lam, a = j ** (-2 * alpha), j ** (-2 * beta)
    b, c, losses = np.zeros(100), np.zeros(100), []
    kappa = min(1.0, 1 / (2 * alpha))
    for t in range(steps):
        losses.append(0.5 * float(np.sum(lam * a)))
        if losses[-1] > 1e3:
            break
        keep, own, total = METHODS[method](t, kappa)
        gg = lam**2 * a * (1 + 1 / batch) + 2 * losses[-1] * lam / batch
        ey, gy = keep * b + lam * a, keep * lam * b + gg
        c = keep**2 * c + 2 * keep * lam * b + gg
        a = a - 2 * own * lam * a + own**2 * gg + total**2 * c - 2 * total * ey + 2 * total * own * gy
        b = ey - own * gy - total * c
    return losses


def saved(gap: float, reducible: float, slope: float) -> float:
    """Compute saved by a contender that ends `gap` below a baseline on a power law, `reducible` above the floor."""
    return 1 - (1 - gap / reducible) ** (1 / slope) if gap < reducible else 1.0

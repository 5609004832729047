"""The arithmetic of the guide's moving figures (docs/_static/figures.js) in Python, for tests and static pictures."""

import math

import numpy as np

from danalab.optim.rules.age import follow


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
        keep, own, total = {
            "sgd": (0.0, 0.3, 0.0),
            "momentum": (0.9, 0.0, 0.03),
            "log": (1 - 5.3 / (5.3 + t), 0.3, 0.15 * (1 + t) ** -kappa),
        }[method]
        gg = lam**2 * a * (1 + 1 / batch) + 2 * losses[-1] * lam / batch
        ey, gy = keep * b + lam * a, keep * lam * b + gg
        c = keep**2 * c + 2 * keep * lam * b + gg
        a = a - 2 * own * lam * a + own**2 * gg + total**2 * c - 2 * total * ey + 2 * total * own * gy
        b = ey - own * gy - total * c
    return losses


def remaining(omega: float, lr: float, steps: int, coupled: float, points: int) -> list[float]:
    """What is left of a weight without a gradient, at `points` even times of a run with a cosine to a tenth."""
    i = np.arange(steps)
    factor = 0.1 + 0.45 * (1 + np.cos(np.pi * i / steps))
    decay = np.full(steps, lr * coupled) if coupled else np.minimum(omega / (steps / 10 + i + 1), 2 * lr)
    left = np.cumprod(1 - factor * decay)
    return [1.0, *left[((i + 1) * points // steps) > (i * points // steps)].tolist()]


def ages(delta: float, peak: float, power: float, steps: int, points: int) -> list[float]:
    """Mean ages of `follow(delta, peak, power, 1)` after each of `points` equal parts of a run with a cosine to 0."""
    age = 0.0
    found: list[float] = []
    for i in range(steps):
        share = (1 + math.cos(math.pi * i / steps)) / 2
        age = min(follow(i + 1, share, delta, peak, power, 1.0), 1 + age)
        if (i + 1) * points // steps > i * points // steps:
            found.append(age)
    return found


def power(gap: float, sigma: float, n: int) -> float:
    """Chance that a test at 5% finds a gap between two means of n seeds each."""
    z = gap / (sigma * math.sqrt(2 / n))
    return sum(0.5 * (1 + math.erf((side * z - 1.959964) / math.sqrt(2))) for side in (1, -1))


def saved(gap: float, reducible: float, slope: float) -> float:
    """Compute saved by a contender that ends `gap` below a baseline on a power law, `reducible` above the floor."""
    return 1 - (1 - gap / reducible) ** (1 / slope) if gap < reducible else 1.0

"""AdEMAMix's slow momentum by the ladder's rule: the window and weight of ADana's at the end of the run."""

from typing import Any


def slow_momentum(steps: int, delta: float = 8.0, kappa: float = 0.85) -> dict[str, Any]:
    """Settings `betas`, `alpha`, `alpha_warmup` and `beta3_warmup` of a run of `steps` steps.

    Its window is steps / delta, its weight steps^(1 - kappa); both grow over the whole run. With fewer steps than
    `delta` it has no effect.
    """
    return {
        "betas": (0.9, 0.999, max(0.0, 1 - delta / steps)),
        "alpha": steps ** (1 - kappa),
        "alpha_warmup": steps,
        "beta3_warmup": steps,
    }

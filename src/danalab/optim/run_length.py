"""Defaults that follow from the length of a run: its warm-up, and its weight decay. Needs no torch.

Measured in bench/decay_law.py: docs/decay-law.md.
"""

from __future__ import annotations

OMEGA = 4.0
"""Strength of weight decay, as in omega / t; arXiv 2602.05298."""
DECAY_BOUND = 1.0
"""The largest automatic weight decay, times the peak learning rate: in short runs the rules start stronger than this.
The weight_decay of optimizers with coupled decay is at most this."""
LOG_TIME_DECAY_BOUND = 2.0
"""The same for logarithmic-time optimizers, whose steps are several times as long as their learning rate."""

FREE_WD_TS = 100.0
"""wd_ts of the decay omega / (wd_ts + t) where the length of the run is not known [steps]."""


def warmup_steps(steps: int) -> int:
    """Length of the warm-up of a run of `steps` steps: a fiftieth, or of a short run a tenth, up to 4 steps."""
    return max(steps // 50, min(steps // 10, 4))

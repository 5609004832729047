"""How often a run is evaluated, and on how many windows: short runs often, but not longer than they train."""

from typing import NamedTuple

from danalab.train.config.sections.evaluation import EvaluationSettings

DEFAULT_INTERVAL, LEAST_EVALUATIONS = 200, 10
DEFAULT_BATCHES, LEAST_BATCHES = 64, 4
SHARE = 0.25
"""Time of all evaluations during a run but the last, as a share of the time of training, at most."""
FIXED_BATCH = 32
"""Sequences in one of `--eval-batches`; a constant, so that the fixed set does not depend on the batch."""


class EvaluationSets(NamedTuple):
    """Automatic values filled in."""

    interval: int
    """Steps between evaluations; 0: only the last."""
    fixed: int
    """Batches of `FIXED_BATCH` windows in each evaluation during the run; 0: the whole split."""
    final: int
    """Those of the last evaluation."""


def evaluation_sets(settings: EvaluationSettings, sequences: int, steps: int) -> EvaluationSets:
    """The evaluations of a run.

    Args: sequences: of the whole run; the forward pass of one takes a third of the time of training on it.
    """
    interval, fixed, final = settings.eval_interval, settings.eval_batches, settings.final_eval_batches
    if interval is None:
        interval = max(1, min(DEFAULT_INTERVAL, steps // LEAST_EVALUATIONS))
    if fixed is None:
        evaluations = steps // interval if interval else 1
        share = 3 * SHARE * sequences / max(evaluations, 1)
        fixed = max(LEAST_BATCHES, min(DEFAULT_BATCHES, int(share / FIXED_BATCH)))
    if final is None:
        final = max(fixed, -(-sequences // FIXED_BATCH)) if fixed else 0
    return EvaluationSets(interval, fixed, final)

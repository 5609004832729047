"""Training: one loop, exact resume, checkpoints that are committed or do not exist, metrics in a run folder.

    config -> resolve -> Trainer.fit: batch -> gradients -> clip -> finite? -> optimizer -> log; evaluate; save; stop?

torch is imported when training starts, so that `danalab train --help` needs none.
"""

from pathlib import Path

from danalab.train.config.train_config import TrainConfig

__all__ = ["TrainConfig", "train"]


def train(config: TrainConfig) -> Path:
    """Train or resume, and return the run folder.

    Raises:
        UserError: bad settings, data or checkpoints.
        NonFiniteError: a loss or gradient was not finite, by `config.on_nonfinite`.
    """
    from danalab.train.step.finite_guard import NonFiniteError
    from danalab.train.trainer import run_training

    outcome = run_training(config)
    if outcome.status == "nonfinite":
        raise NonFiniteError(f"{outcome.folder}: training ended at a loss or gradient that is not finite")
    return outcome.folder

"""Length of a run and the steps at which rows, evaluations and checkpoints are due."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """See the module."""

    iterations: int
    """Steps of the whole run."""
    iterations_to_run: int | None = None
    """Steps of this job at most."""
    log_interval: int = 10
    eval_interval: int = 0
    """0: only at the end."""
    ckpt_interval: int = 0
    """0: only at the end and when stopped."""
    ckpt_steps: frozenset[int] = frozenset()
    """Further steps to checkpoint."""
    gc_interval: int = 0
    """Steps between garbage collections; 0: Python's own."""
    collective_timeout: float = 600.0
    """From the second step on [s]."""

    def is_logged(self, step: int) -> bool:
        """Whether the step gets a row."""
        return step % self.log_interval == 0 or step == 1 or self.is_evaluated(step)

    def is_evaluated(self, step: int) -> bool:
        """Whether its row has an evaluation."""
        return step == self.iterations or bool(self.eval_interval and step % self.eval_interval == 0)

    def is_saved(self, step: int) -> bool:
        """Whether it is checkpointed."""
        return bool(self.ckpt_interval and step % self.ckpt_interval == 0) or step in self.ckpt_steps

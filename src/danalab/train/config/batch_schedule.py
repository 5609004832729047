"""Sequences and tokens that a run has consumed after a number of steps; batch and sequence length may grow by ramps.

    sequences(k) = sum of the first k global batches          tokens(k) = sequences(k) x seq_len

A ramp of lengths cuts sequences into pieces (`data.order.batches`), so it changes neither; it makes attention
cheaper, which FLOPs show. Needs no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from danalab.data.order.ramps import Ramp
from danalab.errors import UserError


@dataclass(frozen=True)
class BatchSchedule:
    """Sequences of each step, and the lengths that they are cut into."""

    batch: Ramp
    length: Ramp

    @classmethod
    def of(cls, global_batch: int, seq_len: int, batch_ramp: str | None, seq_len_ramp: str | None) -> "BatchSchedule":
        """From the flags."""
        schedule = cls(
            Ramp.parse(batch_ramp, global_batch, "--batch-ramp"), Ramp.parse(seq_len_ramp, seq_len, "--seq-len-ramp")
        )
        for length in schedule.length.values:
            if seq_len % length:
                raise UserError(f"--seq-len-ramp {seq_len_ramp}: {length} does not divide --seq-len {seq_len}")
        return schedule

    @property
    def is_constant(self) -> bool:
        """Whether all steps have the same batch and length."""
        return not (self.batch.stages or self.length.stages)

    def sequences(self, steps: int) -> int:
        """Sequences of full length that the first `steps` steps consume."""
        return self.batch.total(steps)

    def tokens(self, steps: int) -> int:
        """Tokens that the first `steps` steps consume."""
        return self.sequences(steps) * self.length.final

    def flops(self, steps: int, per_token: Callable[[int], int]) -> int:
        """Training FLOPs of the first `steps` steps; `per_token(length)` is the cost of a token."""
        total = begin = 0
        for end in [*(until for _, until in self.length.stages), steps]:
            end = min(end, steps)
            if end > begin:
                total += (self.tokens(end) - self.tokens(begin)) * per_token(self.length.at(begin))
                begin = end
        return total

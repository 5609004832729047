"""A rank's rows of a head that is cut along the vocabulary, and the sums and maxima over all ranks' rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from danalab.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class VocabularyPart:
    """Token ids start, start + 1, ... of this rank."""

    start: int
    rows: int
    """Ids of this rank."""
    widest: int
    """Ids of the rank that has most."""
    group: ProcessGroup

    def local(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(targets counted from `start`, those of other ranks replaced by 0; which are this rank's)."""
        own = (targets >= self.start) & (targets < self.start + self.rows)
        return (targets - self.start).where(own, 0), own

    def add(self, values: Tensor) -> Tensor:
        """`values` summed over ranks, in place."""
        torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.SUM, group=self.group)
        return values

    def highest(self, values: Tensor) -> Tensor:
        """The largest of each of `values` over ranks, in place."""
        torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX, group=self.group)
        return values


def whole_logits(hidden: Tensor, head_weight: Tensor) -> Tensor:
    """hidden @ head_weight.T, [..., V], on every rank, also where each holds some rows of the head only."""
    if not isinstance(head_weight, DTensor):
        return F.linear(hidden, head_weight)
    whole = [Replicate()] * head_weight.device_mesh.ndim
    spread = DTensor.from_local(hidden, head_weight.device_mesh, whole, run_check=False)
    return cast(DTensor, F.linear(spread, head_weight)).full_tensor()


def vocabulary_part(head_weight: Tensor) -> tuple[Tensor, VocabularyPart | None]:
    """(the rows [V or fewer, D] that are here, None where these are all of them); gradients pass through.

    Raises:
        UserError: a head that is sharded in another way than along the vocabulary of one group of ranks.
    """
    if not isinstance(head_weight, DTensor):
        return head_weight, None
    mesh, placements = head_weight.device_mesh, head_weight.placements
    if mesh.ndim != 1 or placements != (Shard(0),):
        raise UserError(f"chunked_cross_entropy: head_weight is sharded as {placements}; only (Shard(0),) can be used")
    vocab_size, ranks, rank = head_weight.shape[0], mesh.size(), mesh.get_local_rank()
    widest = -(-vocab_size // ranks)
    start = min(rank * widest, vocab_size)
    rows = min(widest, vocab_size - start)
    return head_weight.to_local(), VocabularyPart(start, rows, widest, mesh.get_group())

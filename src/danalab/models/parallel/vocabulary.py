"""A head sharded along the vocabulary: a rank's rows of it, and sums and maxima over the rows of all ranks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError
from danalab.models.parallel.shards import is_sharded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class VocabularyShard:
    """Token ids start, start + 1, ... of this rank."""

    start: int
    rows: int
    """Ids of this rank."""
    widest: int
    """Ids of the rank with the most."""
    group: "ProcessGroup"

    def local(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(targets counted from `start`, those of other ranks replaced by 0; mask of this rank's)."""
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


def full_logits(hidden: Tensor, head_weight: Tensor) -> Tensor:
    """hidden @ head_weight.T, [..., V], on every rank, also if each holds only some rows of the head."""
    if not is_sharded(head_weight):
        return F.linear(hidden, head_weight)
    from torch.distributed.tensor import DTensor, Replicate

    replicated = [Replicate()] * head_weight.device_mesh.ndim
    hidden = DTensor.from_local(hidden, head_weight.device_mesh, replicated, run_check=False)
    return cast(DTensor, F.linear(hidden, head_weight)).full_tensor()


def vocabulary_shard(head_weight: Tensor) -> tuple[Tensor, VocabularyShard | None]:
    """(this rank's rows [V or fewer, D], None if these are all); gradients pass through."""
    if not is_sharded(head_weight):
        return head_weight, None
    from torch.distributed.tensor import Shard

    mesh, placements = head_weight.device_mesh, head_weight.placements
    if mesh.ndim != 1 or placements != (Shard(0),):
        raise UserError(f"chunked_cross_entropy: head_weight is sharded as {placements}; only (Shard(0),) can be used")
    vocab_size, ranks, rank = head_weight.shape[0], mesh.size(), mesh.get_local_rank()
    widest = -(-vocab_size // ranks)
    start = min(rank * widest, vocab_size)
    rows = min(widest, vocab_size - start)
    return head_weight.to_local(), VocabularyShard(start, rows, widest, mesh.get_group())

"""Weights that may be sharded over ranks (DTensors), without importing torch.distributed.tensor where none is.

A head may be sharded along the vocabulary: a rank has some rows, and sums and maxima are over the rows of all ranks.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(weight: Tensor) -> "TypeIs[DTensor]":
    """Whether `weight` is a DTensor."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)  # Dynamo traces this; to hasattr(weight, "to_local") it answers False


def local_shard(weight: Tensor) -> Tensor:
    """This rank's shard of a DTensor; any other weight as it is."""
    return weight.to_local() if is_sharded(weight) else weight


def assign(parameter: Tensor, values: Tensor) -> None:
    """Copy the whole `values` into `parameter`; of a sharded one every rank passes the whole and keeps its shard."""
    values = values.to(parameter.device, parameter.dtype)
    if is_sharded(parameter):
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(values)


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
        raise UserError(
            f"chunked_cross_entropy: head_weight is sharded as {placements}; only (Shard(0),) can be used"
        )
    vocab_size, ranks, rank = head_weight.shape[0], mesh.size(), mesh.get_local_rank()
    widest = -(-vocab_size // ranks)
    start = min(rank * widest, vocab_size)
    rows = min(widest, vocab_size - start)
    return head_weight.to_local(), VocabularyShard(start, rows, widest, mesh.get_group())

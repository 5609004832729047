"""Weights that may be sharded over ranks (DTensors), without importing torch.distributed.tensor where none is."""

import sys
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
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

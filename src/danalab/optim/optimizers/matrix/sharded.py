"""Orthogonalisation of matrices that are sharded over ranks (FSDP2, tensor parallelism)."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from danalab.errors import UserError
from danalab.optim.distributed.dtensor.layout import RowExchange, cut
from danalab.optim.distributed.shards import owners
from danalab.optim.optimizers.matrix.newton_schulz import Form, matrix_shape, orthogonalize_each
from danalab.optim.products import newton_schulz


def orthogonalize_shards(like: Sequence[Any], local: Sequence[Tensor], form: Form) -> Iterator[tuple[int, Tensor]]:
    """Orthogonalise sharded matrices. Collective: all ranks of the mesh call it with the same matrices.

    `like` are DTensor parameters on one mesh with the same placements, `local` this rank's shard of each, in the dtype
    of the computation. Yields index, and this rank's shard of the result.
    """
    mesh, placements = like[0].device_mesh, like[0].placements
    if mesh.ndim == 1 and type(placements[0]) is Shard and placements[0].dim == 0:
        yield from _by_owners(like, local, form)
    else:
        yield from _by_all(like, local, form)


def matrices_of(stack: Any) -> list[Tensor]:
    """This rank's matrices of a DTensor [matrices, rows, columns]: tensors, or DTensors where a matrix is sharded."""
    mesh, local = stack.device_mesh, stack.detach().to_local()
    sharded = [d for d, placement in enumerate(stack.placements) if getattr(placement, "dim", 0) != 0]
    if not sharded:
        return list(local.unbind(0))
    if mesh.ndim > 1:
        if mesh.mesh_dim_names is None:
            raise UserError(f"a stack is sharded as {stack.placements}; the dimensions of its mesh need names")
        mesh = mesh[tuple(mesh.mesh_dim_names[d] for d in sharded)]
    placements = [Shard(stack.placements[d].dim - 1) for d in sharded]
    shape = stack.shape[1:]
    return [
        DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=(shape[1], 1))
        for part in local.unbind(0)
    ]


def _by_owners(like: Sequence[Any], local: Sequence[Tensor], form: Form) -> Iterator[tuple[int, Tensor]]:
    """Row shards: an all-to-all to the owner of each matrix, which computes it, and an all-to-all back."""
    mesh = like[0].device_mesh
    shapes = [matrix_shape(p.shape) for p in like]
    exchange = RowExchange(
        shapes, owners([newton_schulz(*shape, len(form.chain)) for shape in shapes], mesh.size()), mesh
    )
    wholes = exchange.to_owners(local)
    mine, dtypes = [shapes[i] for i in exchange.mine], [local[0].dtype] * len(exchange.mine)
    work = orthogonalize_each(mine, lambda k: wholes[exchange.mine[k]], form, dtypes, local[0].device)
    for k, o in work:
        wholes[exchange.mine[k]].copy_(o)
    yield from enumerate(exchange.from_owners(wholes, local[0]))


def _by_all(like: Sequence[Any], local: Sequence[Tensor], form: Form) -> Iterator[tuple[int, Tensor]]:
    """Any sharding: every rank gathers a few matrices at a time, computes them, and keeps its shard."""
    mesh, placements = like[0].device_mesh, like[0].placements

    def whole(i: int) -> Tensor:
        p = like[i]
        spread = DTensor.from_local(local[i], mesh, placements, run_check=False, shape=p.shape, stride=p.stride())
        return spread.full_tensor().flatten(1)

    everywhere = [Replicate()] * mesh.ndim
    shapes = [matrix_shape(p.shape) for p in like]
    for i, o in orthogonalize_each(shapes, whole, form, [x.dtype for x in local], local[0].device):
        o = o.reshape(like[i].shape).contiguous()
        yield i, DTensor.from_local(o, mesh, everywhere, run_check=False).redistribute(mesh, placements).to_local()


def norm(like: Any, local: Tensor) -> Tensor:
    """Frobenius norm of a matrix of which this rank has a part. Collective."""
    spread = DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    whole: Any = spread.square().sum()
    return whole.full_tensor().sqrt()


def all_rows(like: Any, own: Tensor, *, are_parts: bool = False) -> Tensor:
    """A value of each row of a matrix, [rows, 1], from those of this rank's rows. Collective.

    are_parts: where columns are cut, the values are to be added.
    """
    rows = like.shape[0]
    placements = [
        (Partial() if are_parts else Replicate()) if _cuts_columns(each) else each for each in like.placements
    ]
    spread = DTensor.from_local(own, like.device_mesh, placements, run_check=False, shape=(rows, 1), stride=(1, 1))  # pyright: ignore
    return spread.full_tensor()


def own_rows(like: Any, whole: Tensor) -> Tensor:
    """This rank's rows of [rows, 1]."""
    return cut(whole, like.device_mesh, [Replicate() if _cuts_columns(each) else each for each in like.placements])


def _cuts_columns(placement: Any) -> bool:
    return getattr(placement, "dim", 0) != 0

"""Tensor parallelism and expert parallelism: how the weights of a decoder are cut over a group of ranks.

Tensor parallelism, by the roles of layers:

    role             rank r holds                     input           output
    linear           rows (heads, hidden units)       whole           its rows' features
    residual         columns                          its features    whole: the sum over ranks
    expert           rows of every expert's matrix    whole           its rows' features
    expert_residual  columns of every expert's        its features    its part of the sum over ranks
    oscillator, convolution, decay: its channels or heads, which are independent of each other
    gain, zero_centered_gain, embedding, tied, head, router: whole on every rank; norms of heads see its heads only

Every rank computes the same routing. The ranks' outputs of the experts are summed once per layer, after the sum over a
token's experts, and so are the gradients of tokens and of their experts' weights. Every parameter becomes a DTensor on
the group's mesh, so that norms and sums treat all of them alike.

Expert parallelism: tokens are sent to the rank that has their expert, and the results back.

    rank r has experts r E/n ... (r + 1) E/n - 1 of E, for n ranks; the rest of the layer is on every rank

Rows are sorted by expert, so those for one rank are contiguous: one all-to-all sends them, another returns the results,
and gradients take the reverse way. Shapes: R rows of this rank, A rows received, D model dimension, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.moe.experts import Experts, StackedLinear
from danalab.models.moe.mixture import MixtureOfExperts, sort_by_expert

if TYPE_CHECKING:
    from danalab.models.decoder import Decoder

HEADS = 2
"""Dimension of the heads in what norms of heads see."""


def check_tensor_parallel(config: ModelConfig, ranks: int) -> None:
    """Check that a model can be cut over `ranks`."""
    delta, sparse = config.linear_attention, config.sparsity
    wanted: dict[str, int] = {}
    if delta is None or len(delta.layers) < config.n_layers:
        wanted |= {"n_heads": config.n_heads, "n_kv_heads": config.kv_heads}
    if delta is not None:
        wanted["linear_key_heads"] = delta.key_heads  # value heads are a multiple of them
    if sparse is None or len(sparse.layers) < config.n_layers:
        wanted["mlp_dim"] = config.mlp_dim
    if sparse is not None:
        wanted["expert_dim"] = sparse.expert_dim
    for name, size in wanted.items():
        if size % ranks:
            raise UserError(f"--tp-size {ranks} does not divide the model's {name} {size}")


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Cut `model`, in place, over the ranks of the 1-D `mesh`; its function stays the same on every rank."""
    check_tensor_parallel(model.config, mesh.size())
    parallelize_module(model, mesh, tensor_parallel_plan(model))
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):  # each rank has some features of every expert
            layer.enter, layer.leave = partial(_sum_gradients, mesh), partial(_sum_over_ranks, mesh)


def tensor_parallel_plan(model: Decoder) -> dict[str, ParallelStyle]:
    """Name of each layer with weights -> how it is cut."""
    of_heads = {id(norm) for module in model.modules() for norm in getattr(module, "head_norms", ())}
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        role = getattr(module, "role", "")
        if role in _STYLES:
            plan[name] = _STYLES[role]()
        else:
            plan[name] = _Whole(Shard(HEADS) if id(module) in of_heads else Replicate())
    return plan


class _Whole(ParallelStyle):
    """Weights whole on every rank; inputs and outputs are plain tensors, placed on the mesh by `layout`."""

    def __init__(self, layout: Placement):
        super().__init__()
        self._layout = layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # Without a partition function, parameters are replicated.
        enter: Any = partial(_enter, self._layout)  # torch types both as returning nothing
        leave: Any = partial(_leave, self._layout)
        return distribute_module(module, device_mesh, None, enter, leave)


class _Cut(ParallelStyle):
    """All weights are cut along `dim`; the module computes with its shard."""

    def __init__(self, dim: int):
        super().__init__()
        self._dim = dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                name, nn.Parameter(distribute_tensor(parameter, device_mesh, [Shard(self._dim)]))
            )
        return module


_STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "linear": ColwiseParallel,
    "residual": RowwiseParallel,
    **dict.fromkeys(("oscillator", "convolution", "decay"), partial(_Cut, 0)),
    "expert": partial(_Cut, 1),
    "expert_residual": partial(_Cut, 2),
}
"""Role of a layer whose weights are cut -> how."""


def _sum_gradients(mesh: DeviceMesh, x: Tensor) -> Tensor:
    """`x`, whose gradient is summed over ranks."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def _sum_over_ranks(mesh: DeviceMesh, x: Tensor) -> Tensor:
    parts = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def _enter(
    layout: Placement, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh
) -> tuple[Any, ...]:
    return (DTensor.from_local(inputs[0], mesh, [layout], run_check=False), *inputs[1:])


def _leave(layout: Placement, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[layout]).to_local()


def check_expert_parallel(config: ModelConfig, ranks: int) -> None:
    """Check that a model's experts can be divided among `ranks`."""
    sparsity = config.sparsity
    assert sparsity is not None
    if sparsity.n_experts % ranks:
        raise UserError(
            f"--expert-parallel: {sparsity.n_experts} experts cannot be divided among {ranks} ranks"
        )


def apply_expert_parallel(model: nn.Module, config: ModelConfig, mesh: DeviceMesh) -> list[nn.Module]:
    """Shard the experts of `model`, in place, over the ranks of the 1-D `mesh`; returns the sharded modules.

    Their weights become DTensors whose local shards are whole experts: without memory where the model is on the meta
    device, else this rank's part of the weights.
    """
    check_expert_parallel(config, mesh.size())
    sharded: list[nn.Module] = []
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            # All sizes depend on the data, so there is nothing to compile.
            exchange: Any = torch.compiler.disable(_exchange)
            layer.exchange = partial(exchange, mesh.get_group(), mesh.size())
            for module in layer.experts.modules():
                if isinstance(module, StackedLinear):
                    shard = module.weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
                    module.weight = nn.Parameter(DTensor.from_local(shard, mesh, [Shard(0)], run_check=False))
                    sharded.append(module)
    return sharded


def _exchange(group: ProcessGroup, ranks: int, experts: Experts, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
    """The outputs of all ranks' experts for `rows`, sorted by expert, `counts` rows each. Collective."""
    sent = counts_E.view(ranks, -1)
    received = torch.empty_like(sent)  # [sending rank, expert of this rank]
    dist.all_to_all_single(received, sent.contiguous(), group=group)
    n_sent, n_received = sent.sum(1).tolist(), received.sum(1).tolist()
    received_AD = _all_to_all(rows_RD, n_sent, n_received, group)
    expert = torch.arange(received.shape[1], device=rows_RD.device).expand_as(received)
    copy_of_row, row_of_copy = sort_by_expert(expert.flatten().repeat_interleave(received.flatten()))
    output = experts(received_AD.index_select(0, copy_of_row), received.sum(0))
    return _all_to_all(output.index_select(0, row_of_copy), n_received, n_sent, group)


def _all_to_all(x: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Rows of `x` sent to each rank, and received from each; gradients take the reverse way."""
    return cast(Tensor, all_to_all_single_autograd(x.contiguous(), received, sent, group))

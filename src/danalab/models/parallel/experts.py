"""Expert parallelism: tokens are sent to the rank that has their expert, and the results back.

    rank r has experts r E/n ... (r + 1) E/n - 1 of E, for n ranks; the rest of the layer is on every rank

Rows are sorted by expert, so those for one rank are contiguous: one all-to-all sends them, another returns the results,
and gradients take the reverse way. Shapes: R rows of this rank, A rows received, D model dimension, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.moe.experts import Experts, StackedLinear
from danalab.models.moe.mixture import MixtureOfExperts, Order, sort_by_expert, spread


def check_expert_parallel(config: ModelConfig, ranks: int) -> None:
    """Check that a model's experts can be divided among `ranks`."""
    sparsity = config.sparsity
    if sparsity is None:
        raise UserError(f"--expert-parallel: {config.arch} has no experts here; give --n-experts, or leave it out")
    if sparsity.n_experts % ranks:
        fitting = ", ".join(str(n) for n in range(2, sparsity.n_experts + 1) if sparsity.n_experts % n == 0)
        raise UserError(
            f"--expert-parallel: {sparsity.n_experts} experts cannot be divided among {ranks} ranks"
            + (f"; {fitting} would do" if fitting else "")
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
            layer.exchange = RankExchange(mesh.get_group(), mesh.size())
            for module in layer.experts.modules():
                if isinstance(module, StackedLinear):
                    shard = module.weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
                    module.weight = nn.Parameter(DTensor.from_local(shard, mesh, [Shard(0)], run_check=False))
                    sharded.append(module)
    return sharded


class RankExchange:
    """Sends rows to the ranks of their experts, and the results back."""

    def __init__(self, group: ProcessGroup, ranks: int):
        self._group, self._ranks = group, ranks
        # All sizes depend on the data, so there is nothing to compile.
        self._run = cast("Callable[..., Tensor]", torch.compiler.disable(self._round_trip))

    def __call__(self, experts: Experts, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The outputs of all ranks' experts for `rows`, sorted by expert, `counts` rows each. Collective."""
        return self._run(experts, rows_RD, counts_E)

    def _round_trip(self, experts: Experts, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        sent = counts_E.view(self._ranks, -1)
        received = torch.empty_like(sent)  # [sending rank, expert of this rank]
        dist.all_to_all_single(received, sent.contiguous(), group=self._group)
        n_sent, n_received = sent.sum(1).tolist(), received.sum(1).tolist()
        received_AD = _all_to_all(rows_RD, n_sent, n_received, self._group)
        expert = torch.arange(received.shape[1], device=rows_RD.device).expand_as(received)
        order = sort_by_expert(expert.flatten().repeat_interleave(received.flatten()).unsqueeze(1))
        output = experts(spread(received_AD, order), received.sum(0))
        inverse = Order(order.rows_of_token.squeeze(1), order.token_of_row.unsqueeze(1))
        return _all_to_all(spread(output, inverse), n_received, n_sent, self._group)


def _all_to_all(x: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    return cast(Tensor, _AllToAll.apply(x, sent, received, group))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        return _exchange(x, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sent, received = ctx.sizes
        return _exchange(grads[0], received, sent, ctx.group), None, None, None


def _exchange(x: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out

"""Experts shared out among ranks: tokens travel to the rank that has their expert, and what it says of them back.

    rank r has experts r E/n ... (r + 1) E/n - 1 of E, for n ranks; everything else of the layer is on every rank

Rows are sorted by expert, so those for one rank lie together: one all-to-all takes them there, another back, and the
gradients go the same ways in reverse. Shapes: R rows of this rank, A rows that arrive, D model dimension, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Shard

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.moe.experts import Experts, StackedLinear
from danalab.models.moe.permute import Order, sort_by_expert, spread

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def check_expert_parallel(config: ModelConfig, ranks: int) -> None:
    """Find out whether a model's experts can be shared out among `ranks`.

    Raises:
        UserError: there are no experts, or they cannot be divided evenly.
    """
    sparsity = config.sparsity
    if sparsity is None:
        raise UserError(f"--expert-parallel: {config.arch} has no experts here; give --n-experts, or leave it out")
    if sparsity.n_experts % ranks:
        fitting = ", ".join(str(n) for n in range(2, sparsity.n_experts + 1) if sparsity.n_experts % n == 0)
        raise UserError(
            f"--expert-parallel: {sparsity.n_experts} experts cannot be divided among {ranks} ranks"
            + (f"; {fitting} would do" if fitting else "")
        )


def share_experts(model: nn.Module, config: ModelConfig, mesh: DeviceMesh) -> list[nn.Module]:
    """Cut the experts of `model`, in place, over the ranks of the 1-D `mesh`; returns the cut modules.

    Their weights become DTensors, each rank's part of which is whole experts; they hold nothing yet where the model is
    on the meta device, and else this rank's part of what was there.

    Raises:
        UserError: see `check_expert_parallel`.
    """
    from danalab.models.moe.mixture import MixtureOfExperts

    check_expert_parallel(config, mesh.size())
    cut: list[nn.Module] = []
    for layer in model.modules():
        if isinstance(layer, MixtureOfExperts):
            layer.exchange = Exchange(mesh.get_group(), mesh.size())
            for module in layer.experts.modules():
                if isinstance(module, StackedLinear):
                    part = module.weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
                    spread_weight = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
                    module.weight = nn.Parameter(spread_weight)
                    cut.append(module)
    return cut


class Exchange:
    """Rows to the ranks of their experts, and back."""

    def __init__(self, group: ProcessGroup, ranks: int):
        self._group, self._ranks = group, ranks
        # What travels depends on the data, and so do all sizes: nothing that a compiler could know beforehand.
        self._go = cast("Callable[..., Tensor]", torch.compiler.disable(self._there_and_back))

    def __call__(self, experts: Experts, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        """What all ranks' experts say of `rows`, which are sorted by expert, `counts` for each. Collective."""
        return self._go(experts, rows_RD, counts_E)

    def _there_and_back(self, experts: Experts, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        leaving = counts_E.view(self._ranks, -1)
        arriving = torch.empty_like(leaving)  # [rank that they come from, expert of this rank]
        dist.all_to_all_single(arriving, leaving.contiguous(), group=self._group)
        out, back = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        arrived_AD = _all_to_all(rows_RD, out, back, self._group)
        of_expert = torch.arange(arriving.shape[1], device=rows_RD.device).expand_as(arriving)
        order = sort_by_expert(of_expert.flatten().repeat_interleave(arriving.flatten()).unsqueeze(1))
        said = experts(spread(arrived_AD, order), arriving.sum(0))
        as_arrived = Order(order.rows_of_token.squeeze(1), order.token_of_row.unsqueeze(1))
        return _all_to_all(spread(said, as_arrived), back, out, self._group)


def _all_to_all(x: Tensor, leaving: list[int], arriving: list[int], group: ProcessGroup) -> Tensor:
    return cast(Tensor, _AllToAll.apply(x, leaving, arriving, group))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: list[int], arriving: list[int], group: ProcessGroup) -> Tensor:
        ctx.ways, ctx.group = (leaving, arriving), group
        return _exchange(x, leaving, arriving, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaving, arriving = ctx.ways
        return _exchange(grads[0], arriving, leaving, ctx.group), None, None, None


def _exchange(x: Tensor, leaving: list[int], arriving: list[int], group: ProcessGroup) -> Tensor:
    out = x.new_empty(sum(arriving), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), arriving, leaving, group=group)
    return out

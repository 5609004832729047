"""Tensor parallelism: how the roles of a decoder's layers cut its weights over a group of ranks.

    role             rank r holds                     input           output
    linear           rows (heads, hidden units)       whole           its rows' features
    residual         columns                          its features    whole: the sum over ranks
    expert           rows of every expert's matrix    whole           its rows' features
    expert_residual  columns of every expert's        its features    its part of the sum over ranks
    head             rows (token ids)                 whole           whole logits (the loss needs none)
    tied             rows (token ids)                 whole           whole, looked up by the rank that has the row
    oscillator, convolution, decay: its channels or heads, which are independent of each other
    gain, zero_centered_gain, embedding, router: whole on every rank; norms of heads see the rank's heads only

Every rank computes the same routing. The ranks' outputs of the experts are summed once per layer, after the sum over a
token's experts, and so are the gradients of tokens and of their experts' weights. Every parameter becomes a DTensor on
the group's mesh, so that norms and sums treat all of them alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from danalab.errors import UserError
from danalab.models.config import ModelConfig
from danalab.models.delta_rule.mixer import GatedDeltaNet
from danalab.models.layers.attention import Attention
from danalab.models.moe.mixture import MixtureOfExperts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from danalab.models.decoder import Decoder

HEADS = 2
"""Dimension of the heads in what norms of heads see."""


def check_tensor_parallel(config: ModelConfig, ranks: int) -> None:
    """Check that a model can be cut over `ranks`."""
    wanted = _cut_sizes(config)
    for name, size in wanted.items():
        if size % ranks:
            fitting = [n for n in range(2, ranks) if not any(s % n for s in wanted.values())]
            hint = f"; {', '.join(map(str, fitting))} would do" if fitting else ""
            raise UserError(f"--tp-size {ranks} does not divide the model's {name} {size}{hint}")
    if config.vocab_size < ranks * ranks:  # else the last rank could be left without a row of the head
        raise UserError(f"--tp-size {ranks} is too large for a vocabulary of {config.vocab_size}")


def _cut_sizes(config: ModelConfig) -> dict[str, int]:
    """Sizes of the model's layers that the number of ranks must divide."""
    delta, sparse = config.linear_attention, config.sparsity
    sizes: dict[str, int] = {}
    if delta is None or len(delta.layers) < config.n_layers:
        sizes |= {"n_heads": config.n_heads, "n_kv_heads": config.kv_heads}
    if delta is not None:
        sizes["linear_key_heads"] = delta.key_heads  # value heads are a multiple of them
    if sparse is None or len(sparse.layers) < config.n_layers:
        sizes["mlp_dim"] = config.mlp_dim
    if sparse is not None:
        sizes["expert_dim"] = sparse.expert_dim
    return sizes


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Cut `model`, in place, over the ranks of the 1-D `mesh`; its function stays the same on every rank."""
    check_tensor_parallel(model.config, mesh.size())
    parallelize_module(model, mesh, tensor_parallel_plan(model))


def tensor_parallel_plan(model: Decoder) -> dict[str, ParallelStyle]:
    """Name of each layer with weights -> how it is cut."""
    mixers = [module for module in model.modules() if isinstance(module, (Attention, GatedDeltaNet))]
    norms = [[each.norm] if isinstance(each, GatedDeltaNet) else [each.q_norm, each.k_norm] for each in mixers]
    of_heads = {id(norm) for own in norms for norm in own}
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            plan[name] = _Summed()
        if next(module.parameters(recurse=False), None) is None:
            continue
        role = getattr(module, "role", None)
        if role == "linear":
            plan[name] = ColwiseParallel()
        elif role == "residual":
            plan[name] = RowwiseParallel()
        elif role == "head":
            plan[name] = ColwiseParallel(output_layouts=Replicate())
        elif role == "tied":
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        elif role in _CUT_ALONG:
            plan[name] = _Cut(_CUT_ALONG[role])
        elif role in ("gain", "zero_centered_gain", "embedding", "router"):
            plan[name] = _Whole(Shard(HEADS) if id(module) in of_heads else Replicate())
        else:
            raise UserError(f"--tp-size: {model.config.arch} has a layer '{name}' of role {role}, which cannot be cut")
    return plan


_CUT_ALONG = {"oscillator": 0, "convolution": 0, "decay": 0, "expert": 1, "expert_residual": 2}
"""Role of a module that works on its shard alone -> dimension along which its weights are cut."""


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
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, device_mesh, [Shard(self._dim)])))
        return module


class _Summed(ParallelStyle):
    """Experts of which each rank has some features: their outputs are summed over ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MixtureOfExperts)
        module.enter, module.leave = partial(_sum_gradients, device_mesh), partial(_sum_over_ranks, device_mesh)
        return module


def _sum_gradients(mesh: DeviceMesh, x: Tensor) -> Tensor:
    """`x`, whose gradient is summed over ranks."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def _sum_over_ranks(mesh: DeviceMesh, x: Tensor) -> Tensor:
    return DTensor.from_local(x, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()


def _enter(layout: Placement, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return (DTensor.from_local(inputs[0], mesh, [layout], run_check=False), *inputs[1:])


def _leave(layout: Placement, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[layout]).to_local()

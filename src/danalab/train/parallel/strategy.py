"""How the ranks share the model, the gradients and the optimizer state: one class for each --distributed-backend.

    single   this module
    ddp      replicas; gradients are summed over ranks in buckets, during the last backward pass of a step
    zero     replicas; each rank receives the gradients of the parameters it owns and updates these
    fsdp     each rank holds a shard of every weight, gradient and moment; weights are gathered block by block
    diloco   workers that average their weights every few hundred steps

The trainer uses the same interface for all: gradients of a global batch, their norms, scaling them.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.optim import build_optimizer
from danalab.optim.distributed.dtensor.layout import whole_of
from danalab.optim.distributed.shards import SavedTensor
from danalab.train.parallel.world import World


class ParallelStrategy:
    """A single process, and the interface of all strategies."""

    loss_factor = 1.0
    """Factor on this rank's loss before its backward pass: gradients are summed over ranks, and some backends average
    them."""

    state_share = 1.0
    """Fraction of the optimizer state of this rank's weights that this rank holds."""

    def __init__(self, world: World):
        self.world = world
        self.parameters: list[Tensor] = []

    def build_model(self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device) -> Decoder:
        """The model on this rank; its initial weights do not depend on the number of ranks."""
        return build_model(config, init=init, seed=seed, device=device)

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        """Prepare `model`, in place, after checkpointing and compilation; `compute_dtype` None: the parameters'."""

    def make_optimizer(self, name: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
        """The optimizer `name` for this rank's parameters."""
        return build_optimizer(name, model, **settings)

    def attach(self, parameters: list[Tensor]) -> None:
        """Set the parameters whose gradients are meant: the optimizer's, in its order."""
        self.parameters = parameters

    # ---- a step ----

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Around the forward and backward pass of a micro-batch; only the `last` of a step communicates."""
        yield

    def finish(self) -> None:
        """Complete the gradients of the global batch, after the last backward pass."""

    def gradient_norms(self) -> Tensor:
        """Norm of each parameter's whole gradient, [parameters], on all ranks."""
        # Collectives need a gradient of every parameter on every rank.
        return whole_norms([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients by a 0-dim tensor, in place."""
        grads = [g.to_local() if isinstance(g, DTensor) else g for p in self.parameters if (g := p.grad) is not None]
        torch._foreach_mul_(grads, factor)

    # ---- metrics ----

    def whole_states(self, optimizer: torch.optim.Optimizer, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, its whole state tensor `name`), where it has one. Collective: all ranks take as many items."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                value = optimizer.state.get(p, {}).get(name)
                if value is not None:
                    yield p, whole_of(value)

    def total(self, value: Tensor) -> Tensor:
        """A 0-dim tensor summed over data-parallel ranks, in place."""
        mesh = self.world.mesh
        if mesh is not None:
            for name in mesh.mesh_dim_names or ():
                if name != "tp" and mesh[name].size() > 1:
                    dist.all_reduce(value, group=mesh.get_group(name))
        return value

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around passes without gradients."""
        yield

    # ---- only used by DiLoCo workers (`danalab.train.parallel.diloco`) ----

    @property
    def pending(self) -> bool:
        """Whether the last step is not complete yet."""
        return False

    def begin(self, step: int) -> int:
        """Called before the first step of a job; returns the step to continue from."""
        return step

    def after_step(self, step: int, loss: Tensor) -> int:
        """Called after each step; returns the step to continue from, later than `step` if other workers are ahead."""
        return step

    def scalars(self) -> dict[str, float]:
        """Values for a row of metrics."""
        return {}

    def stored(self, values: Mapping[str, SavedTensor]) -> Mapping[str, SavedTensor]:
        """The tensors of a checkpoint, from the tensors of model and optimizer."""
        return values

    def state_dict(self) -> dict[str, Any] | None:
        """Plain values for a checkpoint."""
        return None

    def restore(self, path: Path, state: Mapping[str, Any] | None, step: int, *, own: bool) -> int:
        """Restore `state` (`own`: of this run) after model and optimizer; returns the step to continue from."""
        return step


def whole_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, [tensors], replicas counted once. Collective for DTensors: one all-reduce a sharding."""
    local = torch.stack(torch._foreach_norm([t.to_local() if isinstance(t, DTensor) else t for t in tensors]))
    kinds: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        if isinstance(t, DTensor):
            dims = tuple(dim for dim, placement in enumerate(t.placements) if not placement.is_replicate())
            kinds.setdefault((t.device_mesh, dims), []).append(i)
    if not kinds:
        return local
    squares = local.double().square()  # float64: float32 would overflow where the norm itself does not
    for (mesh, dims), indices in kinds.items():
        chosen = squares[indices]
        for dim in dims:
            dist.all_reduce(chosen, group=mesh.get_group(dim))
        squares[indices] = chosen
    return squares.sqrt().to(local.dtype)

"""How a run's model, gradients and optimizer are shared among ranks: one class for each --distributed-backend.

    single   everything here
    ddp      replicas; gradients are summed over ranks, bucket by bucket, during the last backward pass of a step
    zero     replicas; each rank gets the summed gradients of what it owns, and updates that (`DistributedMuonAdamW`)
    fsdp     each rank holds a slice of every weight, gradient and moment; a block's weights are gathered while it works
    diloco   workers that meet every few hundred steps only; in `danalab.train.parallel.diloco`

The trainer asks for the same few things of each: gradients of a global batch, their norms, a factor on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
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
from danalab.train.parallel.norms import whole_norms
from danalab.train.parallel.world import World

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""`build_optimizer` or what takes its place: (name, model, lr=, **settings) -> optimizer."""


class ParallelStrategy:
    """One process: nothing is shared. The others change what differs."""

    loss_factor = 1.0
    """What this rank's part of the loss is multiplied by before its backward pass: gradients are summed over ranks in
    all modes, and some ways to do it take the mean."""

    state_share = 1.0
    """How much this rank keeps of the optimizer's state that its weights have."""

    def __init__(self, world: World):
        self.world = world
        self._parameters: list[Tensor] = []

    def build_model(self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device) -> Decoder:
        """The model on this rank, its initial weights drawn: the same whole weights for any number of ranks."""
        return build_model(config, init=init, seed=seed, device=device)

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        """Prepare `model`, in place, after its blocks were set up for checkpointing and compiled.

        Args: compute_dtype: of the products, None for the parameters' own.
        """

    def make_optimizer(self, name: str, model: nn.Module, *, lr: float, **settings: Any) -> torch.optim.Optimizer:
        """The optimizer by name for this rank's part.

        Raises:
            UserError: see `build_optimizer`.
        """
        return build_optimizer(name, model, lr=lr, **settings)

    def attach(self, parameters: list[Tensor]) -> None:
        """Take note of whose gradients are meant: the optimizer's parameters, in its order."""
        self._parameters = parameters

    # ---- a step ----

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch; only the `last` of a step has to send anything."""
        yield

    def finish(self) -> None:
        """After the last backward pass: gradients are those of the global batch."""

    def gradient_norms(self) -> Tensor:
        """Norm of each parameter's whole gradient, [parameters], on all ranks."""
        return whole_norms([_gradient(p) for p in self._parameters])

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients by a 0-dim tensor, in place."""
        grads = [g.to_local() if isinstance(g, DTensor) else g for p in self._parameters if (g := p.grad) is not None]
        torch._foreach_mul_(grads, factor)

    # ---- what is watched ----

    def norm_of_each_gradient(self) -> Iterator[tuple[Tensor, float]]:
        """(parameter, norm of its whole gradient) of all that are attached. Waits for the device. Collective."""
        return zip(self._parameters, self.gradient_norms().tolist(), strict=True)

    def whole_states(self, optimizer: torch.optim.Optimizer, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, all of its state called `name`) on all ranks, one after another, where there is such. Collective.

        All ranks must take equally many.
        """
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

    # ---- what only workers that meet now and then have (`danalab.train.parallel.diloco`) ----

    @property
    def pending(self) -> bool:
        """Whether the step that was made is not complete yet."""
        return False

    def begin(self, step: int) -> int:
        """Before the first step of a job; the step to go on from, in place of `step`."""
        return step

    def after_step(self, step: int, loss: Tensor) -> int:
        """After each step; the step to go on from, later than `step` where others went ahead."""
        return step

    def scalars(self) -> dict[str, float]:
        """What a row of metrics should say of it."""
        return {}

    def stored(self, values: Mapping[str, SavedTensor]) -> Mapping[str, SavedTensor]:
        """The tensors of a checkpoint, for those that model and optimizer have."""
        return values

    def state_dict(self) -> dict[str, Any] | None:
        """Plain values for a checkpoint."""
        return None

    def restore(self, path: Path, state: Mapping[str, Any] | None, step: int, *, own: bool) -> int:
        """Take up the checkpoint at `path`, which model and optimizer have read; the step to go on from.

        Args:
            state: what `state_dict` gave.
            own: whether the checkpoint was made by this run.
        """
        return step


def _gradient(p: Tensor) -> Tensor:
    # A parameter without a gradient would be missing from sums that all ranks take together.
    return torch.zeros_like(p) if p.grad is None else p.grad

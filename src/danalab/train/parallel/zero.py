"""zero: replicas with a sharded optimizer (`DistributedMuonAdamW`)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim.distributed.zero import DistributedMuonAdamW
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World


class ZeROStrategy(ParallelStrategy):
    """Replicas with a sharded optimizer."""

    def __init__(self, world: World):
        super().__init__(world)
        self.loss_factor = float(world.dp_size)  # the optimizer averages gradients
        self.state_share = 1 / world.dp_size

    def make_optimizer(self, name: str, model: nn.Module, *, lr: float, **settings: Any) -> torch.optim.Optimizer:
        assert self.world.mesh is not None
        group = self.world.mesh.get_group("replicate")
        # Gradients are sent and freed during the backward pass.
        self._optimizer = DistributedMuonAdamW(model, lr, optimizer=name, process_group=group, overlap=True, **settings)
        return self._optimizer

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        with contextlib.nullcontext() if last else self._optimizer.no_sync():
            yield

    def finish(self) -> None:
        self._optimizer.sync_gradients()

    def gradient_norms(self) -> Tensor:
        return self._optimizer.gradient_norms()

    def scale_gradients(self, factor: Tensor) -> None:
        self._optimizer.scale_gradients(factor)

    def whole_states(self, optimizer: torch.optim.Optimizer, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        return self._optimizer.whole_states(name)

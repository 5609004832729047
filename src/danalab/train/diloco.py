"""DiLoCo: workers train independently for H steps, then an outer step averages their changes.

    worker k:   w_k <- theta;  H steps of any optimizer on its part of the data
    g     = mean over workers of (theta - w_k)
    m     <- mu m + g
    theta <- theta - lr (g + mu m)                               torch.optim.SGD with Nesterov's momentum

A worker is a rank with a whole replica. Between outer steps ranks exchange a few numbers only: the loss, and whether it
and all gradients are finite. Evaluations and `model.*` of a checkpoint are theta; `outer.*` is its momentum, and
`worker-K.*` are the weights of worker K within a round and the state of its optimizer (that of worker 0: `optim.*`).
Workers that a checkpoint does not have start at theta with the optimizer of worker 0, so their number may change.

Source: Douillard et al. 2023, arXiv 2311.08105.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from danalab.models.decoder import Decoder
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.step.finite_guard import NonFiniteError


class DiLoCoStrategy(ParallelStrategy):
    """This rank's worker. Outer weights and momentum are kept in host memory."""

    def __init__(self, world: World, spec: TrainConfig | None = None):
        super().__init__(world, spec)
        assert spec is not None
        assert world.mesh is not None
        self.loss_factor = float(world.dp_size)  # losses are those of all workers, gradients a worker's own
        self._spec, self._group = spec, world.mesh.get_group("replicate")
        self._scalars: dict[str, float] = {}

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        self._weights = {name: p.detach() for name, p in model.named_parameters()}
        self.reset()

    def reset(self) -> None:
        """Theta is where the weights are, without momentum."""
        self._theta = {
            name: p.to("cpu", torch.float32, copy=True).contiguous() for name, p in self._weights.items()
        }
        lr, momentum = self._spec.diloco_lr, self._spec.diloco_momentum
        self._outer = torch.optim.SGD(self._theta.values(), lr, momentum, nesterov=momentum > 0)

    def read(
        self,
        checkpoint: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        keep_settings: bool,
    ) -> None:
        super().read(checkpoint, model, optimizer, keep_settings=keep_settings)
        self.reset()
        momentum = {f"outer.{name}": torch.zeros_like(theta) for name, theta in self._theta.items()}
        stored, worker = tensors.names_in(checkpoint), f"worker-{self.world.rank}."
        if optimizer is None or not stored >= momentum.keys():
            return
        tensors.read_named(checkpoint, momentum)
        for theta, value in zip(self._theta.values(), momentum.values(), strict=True):
            self._outer.state[theta]["momentum_buffer"] = value
        own = {f"{worker}weights.{name}": p for name, p in self._weights.items()}
        if stored >= own.keys():
            tensors.read_named(checkpoint, own)
            if self.world.rank:
                tensors.read_optimizer(checkpoint, model, optimizer, keep_settings, worker + tensors.OPTIM)

    # ---- steps ----

    def gradient_norms(self) -> Tensor:
        norms = super().gradient_norms()
        return norms + self.total(norms.sum() * 0)  # not finite where any worker's is not: all skip the step

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """The outer step, where a round ends."""
        if step % self._spec.diloco_steps and step < self._spec.last_step:
            return
        own = mean = 0.0
        for name, theta in self._theta.items():
            weights = self._weights[name]
            difference = theta.to(weights.device) - weights
            own += float(difference.double().square().sum())
            dist.all_reduce(difference, group=self._group)
            theta.grad = difference.div_(self.world.dp_size).to(theta.device)
            mean += float(theta.grad.double().square().sum())
        if not math.isfinite(mean):
            raise NonFiniteError(f"the weights of a worker are not finite after step {step}")
        spread = self.world.sums([own])[0] / self.world.dp_size - mean
        self._outer.step()
        self._place(self._theta)
        norm = math.sqrt(mean)
        divergence = math.sqrt(max(spread, 0.0)) / norm if norm else 0.0
        self._scalars = {"diloco/outer_grad_norm": norm, "diloco/divergence": divergence}

    def _place(self, weights: dict[str, Tensor]) -> None:
        for name, p in self._weights.items():
            p.copy_(weights[name])

    def scalars(self) -> dict[str, float]:
        values, self._scalars = self._scalars, {}
        return values

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        own = {name: p.clone() for name, p in self._weights.items()}
        self._place(self._theta)
        try:
            yield
        finally:
            self._place(own)

    # ---- checkpoints ----

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"weights": self._weights}
        if self.world.rank:
            return {f"worker-{self.world.rank}": {**own, "optim": state["optim"]}}
        kept = [self._outer.state[theta].get("momentum_buffer") for theta in self._theta.values()]
        pairs = zip(self._theta.items(), kept, strict=True)
        momentum = {name: torch.zeros_like(theta) if m is None else m for (name, theta), m in pairs}
        return {**state, "model": {**state["model"], **self._theta}, "outer": momentum, "worker-0": own}

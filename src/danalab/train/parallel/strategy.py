"""How the ranks share the model, the gradients and the optimizer state: one class for each --distributed-backend.

    single   a process alone
    ddp      replicas; gradients are summed over ranks in buckets, during the last backward pass of a step
    zero     replicas; each rank receives the gradients of the parameters it owns and updates these
    fsdp     each rank holds a shard of every weight, gradient and moment; weights are gathered block by block
    diloco   replicas that step alone and average their weights every few hundred steps (danalab.train.diloco)

The trainer uses the same interface for all: gradients of a global batch, their norms, scaling them.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from danalab.models import build_model
from danalab.models.config import ModelConfig
from danalab.models.decoder import Decoder
from danalab.models.shards import local_shard as local
from danalab.optim import build_optimizer
from danalab.optim.sharded import DistributedMuonAdamW
from danalab.optim.tensor_shard import whole_of
from danalab.tables import lookup
from danalab.train.checkpoint import tensors
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.world import World


class ParallelStrategy:
    """A single process, and the interface of all strategies."""

    loss_factor = 1.0
    """Factor on this rank's loss before its backward pass: gradients are summed over ranks, and some backends average
    them."""

    def __init__(self, world: World, spec: TrainConfig | None = None):
        """`spec`: the run, for a backend with settings of its own."""
        self.world = world
        self.parameters: list[Tensor] = []

    build_model: Callable[..., Decoder] = staticmethod(build_model)
    """(the model's config, init, seed, device) -> the model on this rank; its initial weights do not depend on the
    number of ranks."""

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        """Prepare `model`, in place, after checkpointing and compilation; `compute_dtype` None: the parameters'."""

    make_optimizer: Callable[..., torch.optim.Optimizer] = staticmethod(build_optimizer)
    """(name, model, its settings) -> the optimizer for this rank's parameters."""

    def attach(self, parameters: list[Tensor]) -> None:
        """Set the parameters whose gradients are meant: the optimizer's, in its order."""
        self.parameters = parameters

    # ---- a step ----

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Context of a micro-batch's forward and backward pass; only the `last` of a step communicates."""
        yield

    def finish(self) -> None:
        """Complete the gradients of the global batch, after the last backward pass."""

    def gradient_norms(self) -> Tensor:
        """Norm of each parameter's whole gradient, [parameters], on all ranks."""
        # Collectives need a gradient of every parameter on every rank.
        return whole_norms([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])

    def scale_gradients(self, factor: Tensor | float) -> None:
        """Multiply all gradients by a number, in place."""
        grads = [local(p.grad) for p in self.parameters if p.grad is not None]
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
        """Context of passes without gradients."""
        yield

    def after_step(self, step: int) -> None:
        """Called after each step, with the number of steps made."""

    def scalars(self) -> dict[str, float]:
        """Values for a row of metrics."""
        return {}

    # ---- checkpoints ----

    def stored(self, state: dict[str, Any]) -> dict[str, Any]:
        """The nested state that this rank writes, from that of its model and optimizer."""
        return state if self.world.is_main else tensors.sharded_part(state)

    def read(
        self,
        checkpoint: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        keep_settings: bool,
    ) -> None:
        """Load a checkpoint in place; None: the model's weights only."""
        tensors.read(checkpoint, model, optimizer, keep_settings=keep_settings)

    def reset(self) -> None:
        """The weights were set from elsewhere."""


def whole_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, [tensors], replicas counted once. Collective: one all-reduce per kind of sharding."""
    norms = torch.stack(torch._foreach_norm(list(map(local, tensors))))
    kinds: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        if isinstance(t, DTensor):
            dims = tuple(dim for dim, placement in enumerate(t.placements) if not placement.is_replicate())
            kinds.setdefault((t.device_mesh, dims), []).append(i)
    if not kinds:
        return norms
    squares = norms.double().square()  # float64: float32 would overflow where the norm itself does not
    for (mesh, dims), indices in kinds.items():
        chosen = squares[indices]
        for dim in dims:
            dist.all_reduce(chosen, group=mesh.get_group(dim))
        squares[indices] = chosen
    return squares.sqrt().to(norms.dtype)


# ---- several ranks ----
#
# The strategies of several ranks: ddp, zero and fsdp (FSDP2; with replicas, HSDP, and tensor parallelism by the mesh).
#
# ddp sums gradients in buckets during the backward pass. The place of each gradient in the buckets depends on the model
# alone, so sums are taken in the same order in every step and a resumed run repeats an uninterrupted one bit for bit.


BUCKET_MIB = 32.0


class DDPStrategy(ParallelStrategy):
    """Replicas; with expert parallelism each rank holds some of the experts, and everything else."""

    def build_model(
        self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device
    ) -> Decoder:
        if not self.world.layout.expert_parallel:
            return super().build_model(config, init=init, seed=seed, device=device)
        from danalab.models.parallel import apply_expert_parallel

        assert self.world.mesh is not None
        model = build_model(config, device="meta")  # no rank holds all experts
        apply_expert_parallel(model, config, self.world.mesh["replicate"])
        model.to_empty(device=device)
        model.init_weights(torch.Generator().manual_seed(seed), init)
        return model

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        assert self.world.mesh is not None
        # Experts receive the tokens of all ranks: their gradients are sums already.
        replicated = [p for p in model.parameters() if not isinstance(p, DTensor)]
        self._buckets = GradientBuckets(replicated, self.world.mesh.get_group("replicate"))

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self._buckets.holding = not last
        yield

    def finish(self) -> None:
        self._buckets.finish()


class GradientBuckets:
    """Sums `p.grad` over a group, whose ranks run the same backward passes; `parameters` in order of the forward."""

    def __init__(self, parameters: Sequence[Tensor], group: Any):
        self._group = group
        self._buckets = _cut([p for p in parameters if p.requires_grad], BUCKET_MIB * 2**20)
        self.holding = False
        """While True, backward passes accumulate in `p.grad` and send nothing."""
        self._arrived = [0] * len(self._buckets)
        self._next = 0
        self._in_flight: list[tuple[list[Tensor], Tensor, Any]] = []
        for index, bucket in enumerate(self._buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(partial(self._on_gradient, index))

    def _on_gradient(self, index: int, _: Tensor) -> None:
        if self.holding:
            return
        self._arrived[index] += 1
        # In the order of buckets: all ranks must send the same.
        while self._next < len(self._buckets) and self._arrived[self._next] == len(self._buckets[self._next]):
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket])
        for p in bucket:
            p.grad = None
        self._in_flight.append((bucket, flat, dist.all_reduce(flat, group=self._group, async_op=True)))

    @torch.no_grad()
    def finish(self) -> None:
        """Send the remaining buckets and wait; `p.grad` are sums over ranks afterwards."""
        while self._next < len(self._buckets):
            self._send()
        for bucket, flat, work in self._in_flight:
            work.wait()
            for p, g in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = g.view_as(p)
        self._in_flight.clear()
        self._arrived = [0] * len(self._buckets)
        self._next = 0


def _cut(parameters: Sequence[Tensor], most_bytes: float) -> list[list[Tensor]]:
    """Buckets in the order in which a backward pass fills them: last parameters first."""
    buckets: list[list[Tensor]] = []
    size, kind = 0, None
    for p in reversed(parameters):
        if not buckets or size >= most_bytes or kind != (p.dtype, p.device):
            buckets.append([])
            size, kind = 0, (p.dtype, p.device)
        buckets[-1].append(p)
        size += p.numel() * p.element_size()
    return buckets


class ZeROStrategy(ParallelStrategy):
    """Replicas with a sharded optimizer."""

    def __init__(self, world: World, spec: TrainConfig | None = None):
        super().__init__(world, spec)
        self.loss_factor = float(world.dp_size)  # the optimizer averages gradients

    def make_optimizer(self, name: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
        assert self.world.mesh is not None
        group = self.world.mesh.get_group("replicate")
        self._optimizer = DistributedMuonAdamW(model, optimizer=name, process_group=group, **settings)
        return self._optimizer

    def finish(self) -> None:
        self._optimizer.sync_gradients()

    def gradient_norms(self) -> Tensor:
        return self._optimizer.gradient_norms()

    def scale_gradients(self, factor: Tensor | float) -> None:
        self._optimizer.scale_gradients(factor)

    def whole_states(self, optimizer: torch.optim.Optimizer, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        return self._optimizer.whole_states(name)


class FSDPStrategy(ParallelStrategy):
    """Sharded parameters; replicas and tensor parallelism where the mesh has these dimensions."""

    def __init__(self, world: World, spec: TrainConfig | None = None):
        super().__init__(world, spec)
        self.loss_factor = float(world.dp_size)  # FSDP averages
        self._experts: list[nn.Module] = []  # modules whose experts are distributed over ranks, without FSDP

    def build_model(
        self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device
    ) -> Decoder:
        from danalab.models.parallel import apply_tensor_parallel

        self._init = (init, seed, device)
        model = build_model(config, device="meta")  # no rank holds the whole model
        assert self.world.mesh is not None
        if self.world.tp_size > 1:
            apply_tensor_parallel(model, self.world.mesh["tp"])
        if self.world.layout.expert_parallel:
            from danalab.models.parallel import apply_expert_parallel

            self._experts = apply_expert_parallel(model, config, self.world.mesh["shard"])
        return model

    def wrap(self, model: Decoder, compute_dtype: torch.dtype | None) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        mesh = self.world.mesh
        assert mesh is not None
        names = tuple(name for name in ("replicate", "shard") if name in (mesh.mesh_dim_names or ()))
        # Inputs are not cast: that would include the table of rotary positions.
        policy = MixedPrecisionPolicy(
            param_dtype=compute_dtype,
            reduce_dtype=None if compute_dtype is None else torch.float32,
            cast_forward_inputs=False,
        )
        inner = mesh[names]
        shared_out = {p for module in self._experts for p in module.parameters()}
        for module in (*model.blocks, model):
            fully_shard(module, mesh=inner, mp_policy=policy, ignored_params=shared_out or None)
        register_fsdp_forward_method(model, "token_losses")
        if compute_dtype is not None:
            # The residual stream is float32 in all modes.
            model.token_embedding.register_forward_hook(lambda module, inputs, output: output.float())
        init, seed, device = self._init
        model.to_empty(device=device)
        model.init_weights(torch.Generator().manual_seed(seed), init)
        for module in self._experts:
            for p in module.parameters():
                # Experts receive the tokens of all ranks, so this is a sum already, of losses scaled for a mean.
                p.register_hook(partial(torch.mul, other=1 / self.loss_factor))
        self._model: Any = model

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self._model.set_requires_gradient_sync(last)
        self._model.set_is_last_backward(last)
        yield

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._model.reshard()  # a pass without gradients leaves the root's weights gathered


STRATEGIES: dict[str, type[ParallelStrategy] | str] = {
    "single": ParallelStrategy,
    "ddp": DDPStrategy,
    "zero": ZeROStrategy,
    "fsdp": FSDPStrategy,
    "diloco": "danalab.train.diloco:DiLoCoStrategy",
}


def strategy_of(backend: str) -> type[ParallelStrategy]:
    """The class of a --distributed-backend."""
    return lookup(STRATEGIES, backend, "distributed backend")

"""The strategies of several ranks: ddp, zero and fsdp (FSDP2; with replicas, HSDP, and tensor parallelism by the mesh).

ddp sums gradients in buckets during the backward pass. The place of each gradient in the buckets depends on the model
alone, so sums are taken in the same order in every step and a resumed run repeats an uninterrupted one bit for bit.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.optim.distributed.zero import DistributedMuonAdamW
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World

BUCKET_MIB = 32.0


class DDPStrategy(ParallelStrategy):
    """Replicas; with expert parallelism each rank holds some of the experts, and everything else."""

    def build_model(self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device) -> Decoder:
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

    def __init__(self, parameters: Sequence[Tensor], group: Any, bucket_mib: float = BUCKET_MIB):
        self._group = group
        self._buckets = _cut([p for p in parameters if p.requires_grad], bucket_mib * 2**20)
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

    def __init__(self, world: World):
        super().__init__(world)
        self.loss_factor = float(world.dp_size)  # the optimizer averages gradients
        self.state_share = 1 / world.dp_size

    def make_optimizer(self, name: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
        assert self.world.mesh is not None
        group = self.world.mesh.get_group("replicate")
        # Gradients are sent and freed during the backward pass.
        self._optimizer = DistributedMuonAdamW(model, optimizer=name, process_group=group, overlap=True, **settings)
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


class FSDPStrategy(ParallelStrategy):
    """Sharded parameters; replicas and tensor parallelism where the mesh has these dimensions."""

    def __init__(self, world: World):
        super().__init__(world)
        self.loss_factor = float(world.dp_size)  # FSDP averages
        self._experts: list[nn.Module] = []  # modules whose experts are distributed over ranks, without FSDP

    def build_model(self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device) -> Decoder:
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


STRATEGIES = {"single": ParallelStrategy, "ddp": DDPStrategy, "zero": ZeROStrategy, "fsdp": FSDPStrategy}
"""By --distributed-backend; `danalab.train.parallel.diloco` makes that of a DiLoCo worker."""

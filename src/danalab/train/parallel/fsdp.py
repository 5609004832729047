"""fsdp: FSDP2, with replicas (HSDP) and tensor parallelism where the mesh has these dimensions."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World


class FSDPStrategy(ParallelStrategy):
    """Sharded parameters; replicas and tensor parallelism where the mesh has these dimensions."""

    def __init__(self, world: World):
        super().__init__(world)
        self.loss_factor = float(world.dp_size)  # FSDP averages
        self._experts: list[nn.Module] = []
        """Modules whose experts are distributed over ranks, without FSDP."""

    def build_model(self, config: ModelConfig, *, init: str | None, seed: int, device: torch.device) -> Decoder:
        from danalab.models.parallel.tensor import apply_tensor_parallel

        self._init = (init, seed, device)
        model = build_model(config, device="meta")  # no rank holds the whole model
        assert self.world.mesh is not None
        if self.world.tp_size > 1:
            apply_tensor_parallel(model, self.world.mesh["tp"])
        if self.world.layout.expert_parallel:
            from danalab.models.parallel.experts import apply_expert_parallel

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

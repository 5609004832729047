"""Optimizers on several ranks: ZeRO-2 by hand, and what a checkpoint holds of sharded state.

    reduce-scatter of gradients  ->  each rank steps on its own part  ->  all-gather of parameters

pieces.py says which part that is. Two ranks make the steps of one, bit by bit, on equal averages.
DTensors (FSDP2, tensor parallelism) need none of this: `base.Optimizer` steps on their local parts.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from danalab.errors import UserError

from .base import Group, Optimizer
from .build import build_optimizer, find_optimizer
from .dana import means_of
from .groups import ORTHOGONALISED, decay_groups, kind_groups
from .muon import Hybrid
from .pieces import Bucket, layout
from .tensor_shard import SavedTensor, TensorShard

# The older names warn where the newer ones exist.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class DistributedMuonAdamW(torch.optim.Optimizer):
    """ZeRO-2 around an optimizer of this package: parameters are replicated, gradients and state are sharded.

    Args:
        model: on every rank the same.
        optimizer: name of an element-wise optimizer, or of one of the Muon family.
        process_group: the ranks; None: all.
        lr: learning rate; None: the optimizer's default.
        settings: of the optimizer.
    Raises:
        UserError: an optimizer that needs whole tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: str = "d-muon",
        *,
        process_group: Any = None,
        lr: float | None = None,
        **settings: Any,
    ):
        require_supported(optimizer, "zero")
        build = find_optimizer(optimizer)
        is_hybrid = isinstance(build, type) and issubclass(build, Hybrid)
        several = dist.is_initialized()
        self._group = dist.group.WORLD if process_group is None and several else process_group
        self._rank = dist.get_rank(self._group) if several else 0
        self._ranks = dist.get_world_size(self._group) if several else 1
        groups = kind_groups(model) if is_hybrid else decay_groups(model)
        self._params: list[Tensor] = [p for group in groups for _, p in group["params"]]
        whole = [group.get("kind") in ORTHOGONALISED for group in groups for _ in group["params"]]
        self._buckets = layout(self._params, whole, self._ranks)
        pieces = [piece for bucket in self._buckets for piece in bucket.pieces if piece.owner == self._rank]
        self._own = {piece.parameter: piece for piece in pieces}
        self._shards: dict[int, nn.Parameter] = {}
        for i, piece in self._own.items():
            p = self._params[i]
            if not p.is_contiguous() or hasattr(p, "to_local"):
                raise UserError("a parameter is a DTensor, or not contiguous in memory; ZeRO cannot shard it")
            view = p.detach() if whole[i] else piece.of(p.detach().view(-1))
            self._shards[i] = nn.Parameter(view, requires_grad=p.requires_grad)
        numbers = itertools.count()
        self._indices = [[next(numbers) for _ in group["params"]] for group in groups]
        """Of the parameters of each group."""
        own = [
            {**group, "params": [self._shards[i] for i in indices if i in self._shards]}
            for group, indices in zip(groups, self._indices, strict=True)
        ]
        self.inner: Any = build_optimizer(optimizer, own, lr, **settings)
        built = zip(self.inner.param_groups, groups, strict=True)
        super().__init__([{**own, "params": group["params"]} for own, group in built], self.inner.defaults)
        self._counts = [0] * len(self._params)
        self._synced = False
        self._moved = [False] * len(self._params)
        self._addresses = [p.data_ptr() for p in self._params]
        for p in self._params:
            self.state[p] = {}  # not empty: torch's checkpoint helpers would take a step to fill it

    def add_param_group(self, param_group: Group) -> None:
        """Only at construction, where parameters get their owners."""
        if "_addresses" in self.__dict__:
            raise UserError(
                "groups cannot be added to a sharded optimizer; give the whole model at construction"
            )
        super().add_param_group(param_group)

    # ---- a step ----

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Average new gradients over ranks; each rank keeps, and accumulates, those of its own part.
        Collective."""
        if self._synced and all(p.grad is None for p in self._params):
            return
        if any(p.data_ptr() != address for p, address in zip(self._params, self._addresses, strict=True)):
            raise UserError(
                "a parameter was moved after the optimizer was built; move the model to its device first"
            )
        there = torch.tensor([p.grad is not None for p in self._params], dtype=torch.int32)
        moved = self._reduced(there.to(self._params[0].device)).bool().tolist()
        self._moved = [new or (self._synced and old) for new, old in zip(moved, self._moved, strict=True)]
        works = [self._reduce(bucket) for bucket in self._buckets]
        for bucket, (received, work) in zip(self._buckets, works, strict=True):
            if work is not None:
                work.wait()
            for piece in bucket.pieces:
                if piece.owner == self._rank and moved[piece.parameter]:  # by a backward pass on some rank
                    shard = self._shards[piece.parameter]
                    g = piece.within(received).div_(self._ranks).view(shard.shape)
                    shard.grad = g if shard.grad is None else shard.grad.add_(g)
        self._synced = True

    def _reduce(self, bucket: Bucket) -> tuple[Tensor, Any]:
        first = self._params[bucket.parameters[0]]
        sent = torch.zeros(self._ranks, bucket.chunk, dtype=first.dtype, device=first.device)
        for piece in bucket.pieces:
            g = self._params[piece.parameter].grad
            if g is not None:
                piece.within(sent[piece.owner]).copy_(piece.of(g.reshape(-1)))
        for i in bucket.parameters:
            self._params[i].grad = None
        if self._ranks == 1:
            return sent[0], None
        received = sent.new_empty(bucket.chunk)
        return received, _reduce_scatter(received, sent.view(-1), group=self._group, async_op=True)

    def _reduced(self, x: Tensor) -> Tensor:
        if self._ranks > 1:
            dist.all_reduce(x, group=self._group)
        return x

    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Average the gradients unless that is done, step, and send the parameters to all ranks.
        Collective."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self.sync_gradients()
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update(_settings_in(own))
        self.inner.step()
        self._counts = [count + moved for count, moved in zip(self._counts, self._moved, strict=True)]
        works = [self._gather(bucket) for bucket in self._buckets] if self._ranks > 1 else []
        for bucket, (received, work) in zip(self._buckets, works, strict=False):
            work.wait()
            for piece in bucket.pieces:
                if piece.owner != self._rank:
                    p = self._params[piece.parameter]
                    piece.of(p.view(-1)).copy_(piece.within(received[piece.owner]))
        self._clear()
        return loss

    def _gather(self, bucket: Bucket) -> tuple[Tensor, Any]:
        first = self._params[bucket.parameters[0]]
        own = torch.zeros(bucket.chunk, dtype=first.dtype, device=first.device)
        for piece in bucket.pieces:
            if piece.owner == self._rank:
                piece.within(own).copy_(self._shards[piece.parameter].view(-1))
        received = own.new_empty(self._ranks, bucket.chunk)
        return received, _all_gather(received.view(-1), own, group=self._group, async_op=True)

    def _clear(self) -> None:
        self._synced = False
        for shard in self._shards.values():
            shard.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, those that were sent as well."""
        super().zero_grad(set_to_none)
        self._clear()

    # ---- gradients ----

    @torch.no_grad()
    def gradient_norms(self) -> Tensor:
        """Norm of each parameter's whole averaged gradient, [parameters], on all ranks. Collective."""
        self.sync_gradients()
        squares = torch.zeros(len(self._params), dtype=torch.float64, device=self._params[0].device)
        for i, shard in self._shards.items():
            if shard.grad is not None:
                squares[i] = shard.grad.double().square().sum()
        return self._reduced(squares).sqrt().float()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the averaged gradient to a norm of at most `max_norm`; returns the norm before.
        Collective."""
        norm = torch.linalg.vector_norm(self.gradient_norms())
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    @torch.no_grad()
    def scale_gradients(self, factor: Tensor | float) -> None:
        """Multiply all gradients by a number, in place."""
        for shard in self._shards.values():
            if shard.grad is not None:
                shard.grad.mul_(factor)

    # ---- state ----

    @property
    def coefficients(self) -> Any:
        """As of the optimizer inside, which may have none."""
        return self.inner.coefficients  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def collect_stats(self) -> Any:
        """As of the optimizer inside, which may have none; over the coordinates of all ranks. Collective."""
        totals = self.inner.signal_totals  # pyright: ignore[reportAttributeAccessIssue]
        return lambda: means_of(self._reduced(totals().to(self._params[0].device)))

    @property
    def hessian_is_due(self) -> Any:
        """As of the optimizer inside, which may have none."""
        return self.inner.hessian_is_due  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def update_hessian(self) -> Any:
        """As of the optimizer inside, which may have none; from the averaged gradients."""
        return self.inner.update_hessian  # pyright: ignore[reportAttributeAccessIssue]

    def _state_shapes(self, index: int, group: Group) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Key -> (shape, dtype) of a parameter's whole state tensors."""
        p = self._params[index]
        if isinstance(self.inner, Optimizer):
            fresh = self.inner.new_state(group, torch.empty_like(p, device="meta"))
            return {key: (tuple(x.shape), x.dtype) for key, x in fresh.items()}
        # torch's and the library's have tensors of the parameter's shape, from their first step on.
        own = next(iter(self.inner.state.values()), {}) if self._counts[index] else {}
        return {key: (tuple(p.shape), x.dtype) for key, x in own.items() if isinstance(x, Tensor) and x.ndim}

    def sharded_state_dict(self) -> dict[str, Any]:
        """The state_dict of one process, in which each rank has its own part of each tensor, as a
        `TensorShard`."""
        state: dict[int, dict[str, Any]] = {}
        for group, indices in zip(self.param_groups, self._indices, strict=True):
            for i in indices:
                if not self._params[i].requires_grad and not self._counts[i]:
                    continue
                state[i] = {"step": torch.tensor(self._counts[i])}
                own: Any = self.inner.state.get(self._shards[i], {}) if i in self._shards else {}
                start = self._own[i].start if i in self._own else 0
                for key, (shape, dtype) in self._state_shapes(i, group).items():
                    state[i][key] = TensorShard(shape, dtype, start, own.get(key))
        return {"state": state, "param_groups": super().state_dict()["param_groups"]}

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """As of one process: whole tensors, on all ranks. Collective."""
        found = self.sharded_state_dict()
        for entry in found["state"].values():
            for key, value in entry.items():
                entry[key] = self._whole(value) if isinstance(value, TensorShard) else value
        return found

    def _whole(self, shard: TensorShard) -> Tensor:
        whole = torch.zeros(math.prod(shard.shape), dtype=shard.dtype, device=self._params[0].device)
        if shard.values is not None:
            whole[shard.start : shard.start + shard.values.numel()] = shard.values.reshape(-1)
        return self._reduced(whole).view(shard.shape)

    def whole_states(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, its whole state tensor), where it has one. Collective: all ranks take as many items."""
        for i, entry in self.sharded_state_dict()["state"].items():
            if name in entry:
                yield self._params[i], self._whole(entry[name])

    def empty_shard(self, index: int, shape: Sequence[int], dtype: torch.dtype) -> SavedTensor:
        """Zeros into which this rank's part of a state tensor is read."""
        if not shape:
            return torch.zeros((), dtype=dtype)
        piece, values = self._own.get(index), None
        if piece is not None:
            sliced = tuple(shape) == tuple(self._params[index].shape)
            values = torch.zeros(piece.stop - piece.start if sliced else math.prod(shape), dtype=dtype)
        return TensorShard(tuple(shape), dtype, piece.start if piece else 0, values)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state and hyper-parameters, from a state_dict of one process or a sharded one."""
        saved_groups = state_dict["param_groups"]
        if [len(group["params"]) for group in saved_groups] != [len(each) for each in self._indices]:
            raise UserError("the state is of other parameter groups than these")
        for own, saved in zip(self.param_groups, saved_groups, strict=True):
            own.update({key: value for key, value in _settings_in(saved).items() if key != "fused"})
        keys = [key for group in saved_groups for key in group["params"]]  # numbers, or names
        entries = [state_dict["state"].get(key, {}) for key in keys]
        self._counts = [int(entry.get("step", 0)) for entry in entries]
        state = {
            i: self._part(i, entries[i]) if entries[i] else self.inner.state.get(shard, {})
            for i, shard in self._shards.items()
        }
        groups = [
            {**_settings_in(group), "params": [i for i in indices if i in self._shards]}
            for group, indices in zip(self.param_groups, self._indices, strict=True)
        ]
        self.inner.load_state_dict({"state": state, "param_groups": groups})

    def _part(self, index: int, entry: dict[str, Any]) -> dict[str, Tensor]:
        """Of a parameter's saved state what this rank's shard has, as copies."""
        part = {"step": torch.tensor(float(self._counts[index]))}  # torch's kernels take no other dtype
        for key, value in entry.items():
            if key == "step":
                continue
            sliced = tuple(value.shape) == tuple(self._params[index].shape)
            if isinstance(value, TensorShard):
                own = value.to_local()
            else:
                own = self._own[index].of(value.reshape(-1)) if sliced else value
            part[key] = own.clone().view(self._shards[index].shape if sliced else value.shape)
        return part


# ---- which optimizers can be sharded ----

ELEMENTWISE = ("adamw", "sgd", "lion", "adopt", "signsgd", "signum")
"""Optimizers of torch and the library whose state is of their parameters' shapes, element by element."""
WHOLE = ("adafactor", "soap", "prodigy", "mars", "lamb")
"""Libraries' optimizers with sums over whole tensors, which are wrong on shards."""


def require_supported(name: str, mode: str) -> None:
    """Refuse an optimizer that does not work in a parallel mode: single, ddp, zero, fsdp or fsdp+tp. ZeRO has
    element-wise ones, on slices, and Muon's family, on whole matrices."""
    build = find_optimizer(name)
    if isinstance(build, type) and issubclass(build, Optimizer):
        sliced = build.rule is not None or issubclass(build, Hybrid)
    else:
        sliced = name.lower() in ELEMENTWISE
    if (mode == "zero" and not sliced) or (mode.startswith("fsdp") and name.lower() in WHOLE):
        raise UserError(f"optimizer '{name}' needs whole tensors; use --distributed-backend ddp")


def _settings_in(group: Group) -> Group:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}

"""ZeRO-2 for the matrix hybrids and for every element-wise optimizer of the registry.

Parameters are replicated. Each rank owns whole matrices and slices of the rest, keeps the optimizer's state for these
alone, and updates these alone:

    reduce-scatter of gradients, bucket by bucket  ->  step on what is owned  ->  all-gather of parameters

While one bucket is updated, the gradients of the next ones and the parameters of the last ones are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.optim.base import RuleOptimizer
from danalab.optim.hybrid import HybridOptimizer, split_group
from danalab.optim.matrix_step import flat
from danalab.optim.newton_schulz import flops
from danalab.optim.registry import OptimizerSpec, groups_of, optimizer_spec
from danalab.optim.state import check_state_dict, parameter_name
from danalab.optim.zero.canonical import cut_state, gather_states
from danalab.optim.zero.layout import Bucket, Content, Piece, plan
from danalab.optim.zero.traffic import BucketTraffic

OWN_KEYS = ("params", "param_names")


class DistributedMuonAdamW(torch.optim.Optimizer):
    """An optimizer whose state and work are shared out among ranks; do not wrap the model in DDP.

    Gradients are averaged over ranks here. Every rank must build it with the same parameters and run the same backward
    passes; a parameter that has a gradient on some ranks only counts as zero on the others. Any number and shape of
    matrices, any number of ranks; one process without torch.distributed is a world of one. On equal averaged gradients
    results are the same to the last bit for any number of ranks.

        optimizer = DistributedMuonAdamW(model, lr=1e-3, optimizer="d-muon")
        loss.backward();  optimizer.clip_grad_norm_(0.5);  optimizer.step();  optimizer.zero_grad()

    Args:
        model_or_params: a model, parameters, named parameters or groups, as for the optimizer alone.
        lr: peak learning rate.
        optimizer: "muon", "d-muon", "manau", or any element-wise optimizer of the registry ("adana", "adamw", ...).
        process_group: ranks that hold replicas; None: all.
        bucket_mib: gradients that travel together [MiB].
        overlap: send gradients already during the backward pass, and free each at once. `p.grad` is gone afterwards, so
            clip with `clip_grad_norm_` of this class. With gradient accumulation, wrap all backward passes but the last
            in `no_sync()`, or leave it: every pass is then reduced, and only shards accumulate.
        settings: hyper-parameters of the optimizer.
    Raises:
        UserError: an optimizer that cannot be sharded like this, sharded (DTensor) parameters, or see the optimizer.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054 (ZeRO).
    """

    def __init__(
        self,
        model_or_params: Any,
        lr: float = 0.02,
        *,
        optimizer: str = "muon",
        process_group: Any = None,
        bucket_mib: float = 64.0,
        overlap: bool = False,
        **settings: Any,
    ):
        spec = optimizer_spec(optimizer)
        _check_settings(spec, settings)
        self.optimizer_name = spec.name
        self._group = process_group
        joined = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank(process_group) if joined else 0
        self._ranks = dist.get_world_size(process_group) if joined else 1
        groups = _groups(spec, model_or_params)
        self._params = [p for group in groups for _, p in group["params"]]
        names = [_name(name, p) for group in groups for name, p in group["params"]]
        contents = [_content(names, spec, group, name, p) for group in groups for name, p in group["params"]]
        size = max((p.element_size() for p in self._params), default=4)
        buckets = plan(contents, self._ranks, max(1, int(bucket_mib * 2**20 / size)))
        self._traffic = [
            BucketTraffic(bucket, self._params, names, process_group, self._rank, self._ranks) for bucket in buckets
        ]
        self._owned = self._cut(buckets)
        self._inner = self._build(spec, groups, lr, settings)
        self._addresses = [p.data_ptr() for p in self._params]
        self._built = False
        outer = []
        for group, inner in zip(groups, self._inner.param_groups, strict=True):
            named = all(name for name, _ in group["params"])
            params = group["params"] if named else [p for _, p in group["params"]]
            outer.append({**_hyper(inner), "params": params})
        super().__init__(outer, self._inner.defaults)
        self._built = True
        for p in self._params:
            self.state[p] = {}  # not empty as a whole: checkpoint helpers make no rehearsal step, which is collective
        self._holding = False
        self._next = 0  # bucket that is sent next during a backward pass
        if overlap:
            for traffic in self._traffic:
                for i in traffic.bucket.parameters:
                    if self._params[i].requires_grad:
                        self._params[i].register_post_accumulate_grad_hook(partial(self._on_gradient, traffic, i))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only at construction: who owns what is settled then.

        Raises:
            UserError: always, later.
        """
        if getattr(self, "_built", False):
            raise UserError("DistributedMuonAdamW: groups cannot be added later; give all parameters at construction")
        super().add_param_group(param_group)

    # ---- gradients ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward passes add to `p.grad` and send nothing; only matters with `overlap`."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def sync_gradients(self) -> None:
        """Average all gradients over ranks, now; `p.grad` is None afterwards. `step` does it where it wasn't done."""
        self._launch_reduces()
        for traffic in self._traffic:
            traffic.finish_reduce()

    def gradient_norms(self) -> Tensor:
        """Euclidean norm of each parameter's averaged gradient, [parameters], the same on all ranks. Collective."""
        self.sync_gradients()
        squares = torch.zeros(len(self._params), dtype=torch.float64, device=self._device)
        owned = list(self._owned_grads())
        if owned:
            parameters = torch.tensor([piece.parameter for piece, _ in owned], device=self._device)
            # float64: in float32 squares would overflow where norms do not
            norms = torch.stack([n.double() for n in torch._foreach_norm([g for _, g in owned])])
            squares.index_add_(0, parameters, norms.square())
        if self._ranks > 1:
            dist.all_reduce(squares, group=self._group)
        return squares.sqrt().float()

    def grad_norm(self) -> Tensor:
        """Euclidean norm of the averaged gradient over all parameters, 0-dim float32, the same on all ranks."""
        return torch.linalg.vector_norm(self.gradient_norms())

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply the averaged gradient by a 0-dim tensor."""
        for _, g in self._owned_grads():
            g.mul_(factor.to(g.dtype))

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the averaged gradient down to `max_norm` where it is longer; returns its norm before."""
        norm = self.grad_norm()
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, averaged ones too."""
        super().zero_grad(set_to_none)
        for traffic in self._traffic:
            traffic.forget()
        self._next = 0

    # ---- the step ----

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None
    ) -> Any:
        """Average the gradients, update what is owned, and bring everyone's parameters together. Collective.

        Averaged gradients are used up: they are gone afterwards.

        Args:
            closure: evaluates the model again and returns the loss.
        Raises:
            UserError: a sparse gradient, or parameters that were moved since construction.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_addresses()
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update(_hyper(group))
        self._launch_reduces()
        for traffic in self._traffic:
            traffic.finish_reduce()
            grads = traffic.grads or {}
            # Parameters without a gradient are left alone: the rest waits for its own bucket.
            for piece, g in grads.items():
                self._owned[piece].grad = g
            self._inner.step()
            for piece in grads:
                self._owned[piece].grad = None
            traffic.forget()
            traffic.launch_gather()
        for traffic in self._traffic:
            traffic.finish_gather()
        return loss

    def coefficients(self, group: int = 0) -> dict[str, Any]:
        """Scalars of the last step of a group; see the optimizer's own.

        Raises:
            UserError: the optimizer has none.
        """
        own = getattr(self._inner, "coefficients", None)
        if own is None:
            raise UserError(f"optimizer '{self.optimizer_name}' has no coefficients")
        return own(group)

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The state_dict that the optimizer has without sharding, on every rank, tensors in host memory. Collective."""
        own = {piece: self._inner.state[tensor] for piece, tensor in self._owned.items() if tensor in self._inner.state}
        shapes = [p.shape for p in self._params]
        groups, start = [], 0
        for group in self.param_groups:
            stop = start + len(group["params"])
            groups.append({**group, "params": list(range(start, stop))})
            start = stop
        return {"state": gather_states(own, shapes, self._group, self._rank, self._ranks), "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore from a `state_dict` of any number of ranks, or of the optimizer without sharding.

        Raises:
            UserError: saved by another optimizer or from another model; nothing has changed then.
        """
        inner = self._inner
        if isinstance(inner, RuleOptimizer):
            check_state_dict(self, lambda group: inner.rule_of(group).moments, state_dict)
        else:
            _check_outline(self, state_dict)
        by_tensor = {id(tensor): piece for piece, tensor in self._owned.items()}
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        states: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for saved, group in zip(state_dict["param_groups"], inner.param_groups, strict=True):
            ids = []
            for tensor in group["params"]:
                piece = by_tensor[id(tensor)]
                ids.append(len(ids) + sum(len(g["params"]) for g in groups))
                state = state_dict["state"].get(keys[piece.parameter])
                if state is not None:
                    states[ids[-1]] = cut_state(state, piece, self._params[piece.parameter].shape)
            groups.append({**_hyper(saved), "params": ids})
        inner.load_state_dict({"state": states, "param_groups": groups})
        for group, own in zip(self.param_groups, inner.param_groups, strict=True):
            group.update(_hyper(own))

    # ---- helpers ----

    @property
    def _device(self) -> torch.device:
        return self._params[0].device

    def _cut(self, buckets: list[Bucket]) -> dict[Piece, Tensor]:
        """This rank's pieces, each a view of its parameter."""
        found = {}
        for piece in (piece for bucket in buckets for piece in bucket.pieces if piece.owner == self._rank):
            p = self._params[piece.parameter].detach()
            found[piece] = p if piece.numel == p.numel() else p.view(-1)[piece.start : piece.stop]
        return found

    def _build(self, spec: OptimizerSpec, groups: list[dict[str, Any]], lr: float, settings: dict[str, Any]) -> Any:
        """The optimizer proper, on what this rank owns."""
        place = {id(p): i for i, p in enumerate(self._params)}
        pieces: dict[int, list[Tensor]] = {}
        for piece, tensor in sorted(self._owned.items(), key=lambda item: (item[0].parameter, item[0].start)):
            pieces.setdefault(piece.parameter, []).append(tensor)
        own = []
        for group in groups:
            tensors = [tensor for _, p in group["params"] for tensor in pieces.get(place[id(p)], [])]
            own.append({**group, "params": tensors})
        inner = spec.build(own, lr=lr, **settings)
        if isinstance(inner, RuleOptimizer):
            # Ways to compute differ in the last bit, so the size that chooses one is that of the whole.
            inner._numel = sum(p.numel() for p in self._params)
        return inner

    def _launch_reduces(self) -> None:
        """Send what has not been sent, in the order of buckets, which all ranks share."""
        for traffic in self._traffic[self._next :]:
            if traffic.has_gradients or (traffic.grads is None and not traffic.is_reducing):
                traffic.launch_reduce()
        for traffic in self._traffic[: self._next]:
            if traffic.has_gradients:
                traffic.launch_reduce()
        self._next = 0

    def _on_gradient(self, traffic: BucketTraffic, parameter: int, _: Tensor) -> None:
        if self._holding:
            return
        traffic.arrived(parameter)
        with torch.no_grad():
            while self._next < len(self._traffic) and self._traffic[self._next].complete:
                self._traffic[self._next].launch_reduce()
                self._next += 1
            if self._next == len(self._traffic):
                self._next = 0  # another backward pass may follow

    def _owned_grads(self) -> Iterator[tuple[Piece, Tensor]]:
        for traffic in self._traffic:
            for piece, g in (traffic.grads or {}).items():
                if g is not None:
                    yield piece, g

    def _check_addresses(self) -> None:
        for p, address in zip(self._params, self._addresses, strict=True):
            if p.data_ptr() != address:
                raise UserError(
                    f"DistributedMuonAdamW: a parameter of shape {tuple(p.shape)} was moved or replaced after the"
                    " optimizer was built; move the model to its device and dtype first"
                )


def _groups(spec: OptimizerSpec, model_or_params: Any) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), the name "" where there is none."""
    if isinstance(model_or_params, nn.Module):
        groups = groups_of(spec, model_or_params)
    else:
        given = list(model_or_params)
        if not given:
            raise UserError("DistributedMuonAdamW: no parameters were given")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
    if _is_hybrid(spec):
        groups = [part for group in groups for part in split_group("DistributedMuonAdamW", group)]
    found = []
    for group in groups:
        params = group["params"]
        entries = [params] if isinstance(params, Tensor) else list(params)
        found.append({**group, "params": [entry if isinstance(entry, tuple) else ("", entry) for entry in entries]})
    return found


def _is_hybrid(spec: OptimizerSpec) -> bool:
    return isinstance(spec.build, type) and issubclass(spec.build, HybridOptimizer)


def _content(names: list[str], spec: OptimizerSpec, group: Mapping[str, Any], name: str, p: Tensor) -> Content:
    if getattr(p, "device_mesh", None) is not None:
        raise UserError(
            f"DistributedMuonAdamW: {_name(name, p)} is a DTensor already; use '{spec.name}' itself with FSDP2"
        )
    matrix = bool(group.get("use_muon"))
    # An element costs about as much as 100 multiplications: it is memory that is slow.
    cost = 100.0 * p.numel() + (5 * flops(*flat(p.shape)) if matrix else 0.0)
    return Content(p.numel(), cost, not matrix and p.is_contiguous(), (p.dtype, p.device))


def _check_settings(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    if not (spec.elementwise or _is_hybrid(spec)):
        raise UserError(
            f"DistributedMuonAdamW: optimizer '{spec.name}' cannot be sharded: it is neither element-wise nor one of"
            " muon, d-muon, manau; train it with ddp or fsdp"
        )
    for setting in settings:
        if setting not in spec.settings:
            hint = nearest(setting, spec.settings)
            raise UserError(
                f"optimizer '{spec.name}' has no setting '{setting}'{hint}; it has: {', '.join(spec.settings)}"
            )


def _check_outline(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Refuse a state_dict with other groups or shapes than the optimizer's."""
    owner = type(optimizer).__name__
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= set(saved):
        raise UserError(f"{owner}: not an optimizer state_dict (it has no 'state' and 'param_groups')")
    have = [len(group["params"]) for group in optimizer.param_groups]
    found = [len(group["params"]) for group in saved["param_groups"]]
    if have != found:
        raise UserError(
            f"{owner}: the state_dict has groups of {found} parameters, this optimizer of {have};"
            " build it with the groups of the saved run"
        )
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for index, (p, key) in enumerate(zip(group["params"], saved_group["params"], strict=True)):
            for name, value in saved["state"].get(key, {}).items():
                if isinstance(value, Tensor) and value.ndim and value.shape != p.shape:
                    raise UserError(
                        f"{owner}: {name} of {parameter_name(group, index)} has shape {tuple(value.shape)} in the"
                        f" state_dict, the parameter {tuple(p.shape)}: it was saved from another model"
                    )


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in OWN_KEYS}


def _name(name: str, p: Tensor) -> str:
    return f"parameter '{name}'" if name else f"a parameter of shape {tuple(p.shape)}"

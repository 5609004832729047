"""ZeRO-2 for every optimizer of the registry that updates each parameter independently.

Parameters are replicated. Each rank owns slices of element-wise parameters and some of the others whole, and keeps
state and computes updates only for these:

    reduce-scatter of gradients, bucket by bucket  ->  step on own pieces  ->  all-gather of parameters

While a bucket is updated, gradients of later buckets and parameters of earlier ones are being sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim.distributed import require_supported
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter, build_adapted, parameter_groups
from danalab.optim.distributed.shards import SavedTensor
from danalab.optim.distributed.zero.buckets import BucketTraffic, SharedGradients
from danalab.optim.distributed.zero.layout import Bucket, Content, Piece, plan
from danalab.optim.distributed.zero.state import OwnedState
from danalab.optim.optimizers.base import RuleOptimizer
from danalab.optim.optimizers.groups import as_given, called, hyper, require_some
from danalab.optim.optimizers.matrix.newton_schulz import matrix_shape
from danalab.optim.products import newton_schulz
from danalab.optim.registry import groups_of, optimizer_spec
from danalab.optim.settings import plain_settings
from danalab.optim.step.state import has_zero_rate, loss_of, set_dummy_step
from danalab.optim.step.state_dict import by_names, check_entry, check_groups, check_rule_state, entries
from danalab.optim.values import OptimizerSpec, require_known


class DistributedMuonAdamW(torch.optim.Optimizer):
    """An optimizer whose state and updates are sharded over ranks; do not wrap the model in DDP.

    It averages gradients over ranks. Every rank must build it with the same parameters and run the same backward
    passes; a gradient that some ranks lack counts as zero there. Any number and shape of matrices, any number of ranks;
    without torch.distributed there is one. For equal averaged gradients the results are bitwise equal for any number of
    ranks.

        optimizer = DistributedMuonAdamW(model, lr=1e-3, optimizer="d-muon")
        loss.backward();  optimizer.clip_grad_norm_(0.5);  optimizer.step();  optimizer.zero_grad()

    Args:
        model_or_params: a model, parameters, named parameters or groups, as for the optimizer alone.
        lr: peak learning rate.
        optimizer: any of the registry that supports it (`danalab.optim.distributed.why_not`).
        process_group: ranks that hold replicas; None: all.
        bucket_mib: size of a bucket [MiB].
        overlap: send and free gradients during the backward pass. `p.grad` is None afterwards, so clip with
            `clip_grad_norm_` of this class. With gradient accumulation, all backward passes but the last may be in
            `no_sync()`; otherwise every pass is reduced, and only shards accumulate.
        settings: hyper-parameters of the optimizer.
    Raises:
        UserError: an optimizer without support for ZeRO, DTensor parameters, or see the optimizer.
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
        check_settings(spec, settings)
        self.spec = spec
        self._group = process_group
        joined = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank(process_group) if joined else 0
        self._ranks = dist.get_world_size(process_group) if joined else 1
        lr, settings = plain_settings({"lr": lr})["lr"], plain_settings(settings)
        groups = groups_for(spec, model_or_params, bool(settings.get("per_head")))
        self._params = [p for group in groups for _, p in group["params"]]
        names = [called(name, p) for group in groups for name, p in group["params"]]
        contents = [content(spec, group, name, p) for group in groups for name, p in group["params"]]
        size = max((p.element_size() for p in self._params), default=4)
        buckets = plan(contents, self._ranks, max(1, int(bucket_mib * 2**20 / size)))
        self._traffic = [
            BucketTraffic(bucket, self._params, names, process_group, self._rank, self._ranks) for bucket in buckets
        ]
        self._owned = own_pieces(buckets, self._params, self._rank)
        self._inner = optimizer_of(self._owned, self._params, spec, groups, lr, settings)
        self._owned_state = OwnedState(self._inner, self._owned, self._params, process_group, self._rank, self._ranks)
        self._gradients = SharedGradients(self._traffic, self._params, process_group, self._ranks, overlap)
        self._addresses = [p.data_ptr() for p in self._params]
        self._built = False
        pairs = zip(groups, self._inner.param_groups, strict=True)
        outer = [{**hyper(inner), "params": as_given(group["params"])} for group, inner in pairs]
        known = self._inner.param_groups[0]  # torch would add all defaults to every group
        super().__init__(outer, {key: value for key, value in self._inner.defaults.items() if key in known})
        self._built = True
        for p in self._params:
            self.state[p] = {}  # not empty: checkpoint helpers would take a dummy step, which is collective

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only at construction, which assigns ownership.

        UserError: always, later.
        """
        if getattr(self, "_built", False):
            raise UserError("DistributedMuonAdamW: groups cannot be added later; give all parameters at construction")
        super().add_param_group(param_group)

    # ---- gradients ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward passes accumulate in `p.grad` and send nothing; only needed with `overlap`."""
        with self._gradients.held():
            yield

    def sync_gradients(self) -> None:
        """Average all gradients over ranks; `p.grad` is None afterwards. `step` calls it if needed."""
        self._gradients.launch()
        self._gradients.finish()

    def gradient_norms(self) -> Tensor:
        """Euclidean norm of each parameter's averaged gradient, [parameters], the same on all ranks. Collective."""
        self.sync_gradients()
        return self._gradients.norms()

    def grad_norm(self) -> Tensor:
        """Euclidean norm of the averaged gradient over all parameters, 0-dim float32, the same on all ranks."""
        return torch.linalg.vector_norm(self.gradient_norms())

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply the averaged gradient by a 0-dim tensor."""
        self._gradients.scale(factor)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the averaged gradient to a norm of at most `max_norm`; returns the norm before."""
        norm = self.grad_norm()
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._gradients.forget()

    # ---- the step ----

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], Any] | None = None, *, found_nonfinite: Tensor | bool | None = None
    ) -> Any:
        """Average gradients, update own pieces, and all-gather parameters. Collective. Averaged gradients are dropped.

        `found_nonfinite`: True, on all ranks, skips the step; see `RuleOptimizer.step`.
        UserError: a sparse gradient, or parameters that were moved since construction.
        """
        loss = loss_of(closure)
        skips = {} if found_nonfinite is None else {"found_nonfinite": found_nonfinite}
        inner = self._inner
        if skips and not (
            isinstance(inner, RuleOptimizer) and all(group["capturable"] for group in inner.param_groups)
        ):
            if bool(found_nonfinite):
                return loss
            skips = {}
        for p, address in zip(self._params, self._addresses, strict=True):
            if p.data_ptr() != address:
                raise UserError(
                    f"DistributedMuonAdamW: a parameter of shape {tuple(p.shape)} was moved or replaced after the"
                    " optimizer was built; move the model to its device and dtype first"
                )
        self._gradients.launch()
        is_dummy = has_zero_rate(self.param_groups) and self._gradients.are_zero()  # collective if all rates are zero
        with self._settings_shared(), set_dummy_step(is_dummy):
            if self.spec.in_parts or isinstance(self._inner, RuleOptimizer):
                for traffic in self._traffic:
                    self._step([traffic], skips)
            else:
                self._step(self._traffic, skips)  # many libraries count steps by group: one call for each step
        for traffic in self._traffic:
            traffic.finish_gather()
        return loss

    def _step(self, part: Sequence[BucketTraffic], skips: dict[str, Any]) -> None:
        """Update the own pieces of some buckets and start their all-gather."""
        for traffic in part:
            traffic.finish_reduce()
            # Pieces without a gradient are not updated: those of other buckets come later.
            for piece, g in (traffic.grads or {}).items():
                self._owned[piece].grad = g
        self._inner.step(**skips)
        for traffic in part:
            for piece in traffic.grads or {}:
                self._owned[piece].grad = None
            traffic.forget()
            traffic.launch_gather()

    @contextmanager
    def _settings_shared(self) -> Iterator[None]:
        """Within, the inner optimizer has the settings of the groups; afterwards its changes are copied back."""
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner.update(hyper(group))
        yield
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(hyper(inner))

    @torch.no_grad()
    def _update_hessian(self, n_labels: float) -> None:
        """Update the Hessian from averaged gradients of `n_labels` labels sampled on all ranks; drop these."""
        self.sync_gradients()
        with self._settings_shared():
            for traffic in self._traffic:
                for piece, g in (traffic.grads or {}).items():
                    self._owned[piece].grad = g
            self._inner.update_hessian(n_labels)
        for tensor in self._owned.values():
            tensor.grad = None
        self._gradients.forget()

    def __getstate__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise UserError("DistributedMuonAdamW: can be neither copied nor pickled; save and load its state_dict()")

    def __getattr__(self, name: str) -> Any:
        """Methods that some inner optimizers have."""
        own = {
            "coefficients": lambda group=0: self._inner.coefficients(group),
            "train": partial(self._switch, "train"),
            "eval": partial(self._switch, "eval"),
            "hessian_is_due": self._owned_state.hessian_is_due,
            "update_hessian": self._update_hessian,
            "collect_stats": self._owned_state.collect_stats,
        }
        if name not in own or "_inner" not in self.__dict__ or not hasattr(self._inner, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return own[name]

    @torch.no_grad()
    def _switch(self, name: str) -> None:
        """Switch between training and evaluation weights, each rank its own pieces. Collective."""
        with self._settings_shared():
            getattr(self._inner, name)()
        for traffic in self._traffic:
            traffic.launch_gather()
        for traffic in self._traffic:
            traffic.finish_gather()

    # ---- state ----

    def whole_states(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, its whole state tensor `name`) on every rank, in host memory, one after another. Collective.

        Parameters without such state are left out. All ranks must take the same number of items.
        """
        return self._owned_state.named(name)

    def state_dict(self) -> dict[str, Any]:
        """The state_dict of the optimizer without sharding, on every rank, tensors in host memory. Collective."""
        return self._owned_state.state_dict(self.param_groups, self.spec.name)

    def sharded_state_dict(self) -> dict[str, Any]:
        """As `state_dict`, with a `TensorShard` of own pieces in place of each tensor that is not 0-dim. Collective.

        Nothing is copied or sent.
        """
        return self._owned_state.state_dict(self.param_groups, self.spec.name, sharded=True)

    def empty_shard(self, parameter: int, shape: Sequence[int], dtype: torch.dtype) -> SavedTensor:
        """Zeros for this rank's shard of a state tensor, to be filled in for `load_state_dict`.

        Args:
            parameter: its index, in the order of the groups.
            shape: of the whole tensor.
        """
        return self._owned_state.empty_shard(parameter, shape, dtype)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore from a `state_dict` of any number of ranks, or of the optimizer without sharding. Collective.

        Tensors may be replaced by this rank's shards, made by `empty_shard`.

        UserError: saved by another optimizer or from another model; nothing was changed.
        """
        state_dict = by_names(OWNER, self.param_groups, state_dict)
        if isinstance(inner := self._inner, RuleOptimizer):
            check_rule_state(self, lambda group: inner.rule_of(group).stored(group), state_dict)
        else:
            check_groups(OWNER, self.param_groups, state_dict)
            # Element-wise state has the shapes of the parameters; each rank's optimizer sees only its pieces of it.
            for name, p, entry in entries(self.param_groups, state_dict) if self.spec.elementwise else ():
                form = {key: p if getattr(value, "shape", ()) else None for key, value in (entry or {}).items()}
                check_entry(OWNER, name, p, entry or {}, form)
        self._owned_state.load_state_dict(state_dict)
        for group, own in zip(self.param_groups, inner.param_groups, strict=True):
            group.update(hyper(own))


OWNER = "DistributedMuonAdamW"


def groups_for(spec: OptimizerSpec, model_or_params: Any, per_head: bool) -> list[dict[str, Any]]:
    """Groups whose "params" are (name, parameter), the name "" where there is none."""
    is_model = isinstance(model_or_params, nn.Module)
    given = groups_of(spec, model_or_params, per_head) if is_model else model_or_params
    groups = parameter_groups(spec, OWNER, given)
    require_some(OWNER, groups)
    return groups


def content(spec: OptimizerSpec, group: Mapping[str, Any], name: str, p: Tensor) -> Content:
    """The layout's view of a parameter."""
    if getattr(p, "device_mesh", None) is not None:
        raise UserError(f"{OWNER}: {called(name, p)} is a DTensor already; use '{spec.name}' itself with FSDP2")
    matrix = group["use_muon"] if hasattr(spec.build, "split_group") else not spec.elementwise
    # Memory traffic makes an element as expensive as about 100 multiplications.
    cost = 100.0 * p.numel()
    if matrix and p.ndim > 1:
        stacked = group.get("kind") == "experts"
        count, shape = (len(p), p.shape[1:]) if stacked else (1, p.shape)
        cost += 2.5 * count * newton_schulz(*matrix_shape(shape), steps=1)
    return Content(p.numel(), cost, not matrix and p.is_contiguous(), (p.dtype, p.device))


def check_settings(spec: OptimizerSpec, settings: Mapping[str, Any]) -> None:
    """Refuse an optimizer that does not support ZeRO, and unknown settings."""
    require_supported(spec, "zero")
    if settings.get("state_dtype") == "8bit":
        raise UserError(f"{OWNER}: state_dtype 8bit has scales for blocks of rows, which ZeRO's slices cut; use bf16+8")
    require_known(spec.name, spec.settings, settings)


def own_pieces(buckets: Sequence[Bucket], params: Sequence[Tensor], rank: int) -> dict[Piece, Tensor]:
    """A rank's pieces, each a view of its parameter."""
    views = {}
    for piece in (piece for bucket in buckets for piece in bucket.pieces if piece.owner == rank):
        p = params[piece.parameter].detach()
        view = p if piece.numel == p.numel() else p.view(-1)[piece.start : piece.stop]
        views[piece] = view.requires_grad_(params[piece.parameter].requires_grad)  # no state for what is frozen
    return views


def optimizer_of(
    owned: Mapping[Piece, Tensor],
    params: Sequence[Tensor],
    spec: OptimizerSpec,
    groups: Sequence[Mapping[str, Any]],
    lr: float,
    settings: dict[str, Any],
) -> Any:
    """The optimizer of a rank's pieces; a group without owned pieces stays, empty."""
    place = {id(p): i for i, p in enumerate(params)}
    pieces: dict[int, list[Tensor]] = {}
    for piece, tensor in sorted(owned.items(), key=lambda item: (item[0].parameter, item[0].start)):
        pieces.setdefault(piece.parameter, []).append(tensor)
    own, names = [], []
    for group in groups:
        pairs = [(name, tensor) for name, p in group["params"] for tensor in pieces.get(place[id(p)], [])]
        own.append({**group, "params": [tensor for _, tensor in pairs]})
        names += [name for name, _ in pairs]
    inner = build_adapted(spec, own, lr, settings)
    if isinstance(inner, DTensorAdapter):
        inner.name_parameters(names)
    return inner

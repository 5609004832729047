"""State of ZeRO's inner optimizer in the form of an unsharded one: gathered from the ranks, and cut for them."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.distributed.dtensor.placement import Outline, map_leaves
from danalab.optim.distributed.dtensor.state import check_loadable
from danalab.optim.distributed.shards import SavedTensor, TensorShard
from danalab.optim.distributed.zero.layout import Piece
from danalab.optim.optimizers.groups import hyper
from danalab.optim.optimizers.stats import collect
from danalab.optim.step.state_dict import leaves

PieceStates = Mapping[Piece, tuple[Mapping[str, Any], bool]]
"""Piece -> (its state, whether its parameter has taken no step)."""


class OwnedState:
    """State of the optimizer `inner` of this rank's pieces, `owned`. All methods but `empty_shard` are collective."""

    def __init__(
        self, inner: Any, owned: Mapping[Piece, Tensor], params: Sequence[Tensor], group: Any, rank: int, ranks: int
    ):
        self._inner, self._owned, self._params = inner, owned, params
        self._group, self._rank, self._ranks = group, rank, ranks

    def hessian_is_due(self) -> bool:
        """Whether the next step needs an estimate of the Hessian. Collective."""
        due = [bool(self._inner.hessian_is_due())]
        if self._ranks > 1:  # by rank 0, which always owns a piece; a rank without pieces does not know
            source = dist.get_global_rank(self._group, 0) if self._group is not None else 0
            dist.broadcast_object_list(due, src=source, group=self._group)
        return due[0]

    def collect_stats(self) -> dict[str, Tensor]:
        """As the optimizer's method, over all ranks. Collective."""

        def across(totals: dict[str, Tensor]) -> dict[str, Tensor]:
            per_rank = self._all_gather({name: float(total) for name, total in totals.items()})
            names = dict.fromkeys(name for one in per_rank for name in one)  # a rank without pieces has no totals
            return {
                name: torch.tensor(sum(one.get(name, 0.0) for one in per_rank), dtype=torch.float64) for name in names
            }

        return collect(self._inner, across)

    def named(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, its whole state tensor `name`) on every rank, in host memory, one after another."""
        own = {piece: {name: state[name]} for piece, (state, _) in self._own_states().items() if name in state}
        for i, p in enumerate(self._params):
            states, _ = self._gather_whole(
                {piece: (state, False) for piece, state in own.items() if piece.parameter == i}
            )
            if i in states:
                yield p, states[i][name]

    def state_dict(
        self, groups: Sequence[MutableMapping[str, Any]], optimizer_name: str, *, sharded: bool = False
    ) -> dict[str, Any]:
        """The state_dict without sharding, on every rank, tensors in host memory.

        To `groups` of the whole optimizer settings are added that a library adds at its first step. `sharded`: with a
        `TensorShard` of this rank's own state in place of each tensor that is not 0-dim.
        """
        own = self._own_states()  # first: it may add settings to the groups
        for group, inner in zip(groups, self._inner.param_groups, strict=True):
            for key, value in hyper(inner).items():
                group.setdefault(key, value)
        state, waiting = self._gather_shards(own) if sharded else self._gather_whole(own)
        saved_groups, start = [], 0
        for group in groups:
            stop = start + len(group["params"])
            saved = {**group, "params": list(range(start, stop))}
            if isinstance(self._inner, DTensorAdapter):
                saved["unstepped"] = [i - start for i in range(start, stop) if i in waiting]
                saved["made_by"] = optimizer_name
            elif stateless := [i - start for i in range(start, stop) if i not in state]:
                saved["unstepped"] = stateless
            saved_groups.append(saved)
            start = stop
        return {"state": state, "param_groups": saved_groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load this rank's part of a whole state_dict whose outline was checked.

        UserError: the optimizer of some rank refuses its part; no rank has changed anything.
        """
        inner = self._inner
        cut = self._cut_state_dict(saved)
        if isinstance(inner, DTensorAdapter):
            self._agree(lambda: check_loadable(inner, cut))
        self._agree(lambda: inner.load_state_dict(cut))

    def empty_shard(self, index: int, shape: Sequence[int], dtype: torch.dtype) -> SavedTensor:
        """Zeros for this rank's part of a state tensor; without values where it owns nothing of the parameter."""
        if not shape:
            return torch.zeros((), dtype=dtype)
        piece = next((piece for piece in self._owned if piece.parameter == index), None)
        if piece is None:
            return TensorShard(tuple(shape), dtype)
        p = self._params[index]
        is_cut = tuple(shape) == tuple(p.shape) and piece.numel < p.numel()
        start, size = (piece.start, (piece.numel,)) if is_cut else (0, tuple(shape))
        return TensorShard(tuple(shape), dtype, start, torch.zeros(size, dtype=dtype, device=p.device))

    # ---- from pieces to parameters ----

    def _own_states(self) -> PieceStates:
        """The complete state of this rank's pieces."""
        inner = self._inner
        if isinstance(inner, DTensorAdapter):
            saved = inner.state_dict()
            ids = [id(p) for group in inner.param_groups for p in group["params"]]
            states = {tensor: saved["state"].get(index, {}) for index, tensor in enumerate(ids)}
            groups = zip(inner.param_groups, saved["param_groups"], strict=True)
            waiting = {id(group["params"][k]) for group, saved_group in groups for k in saved_group["unstepped"]}
            return {piece: (states[id(tensor)], id(tensor) in waiting) for piece, tensor in self._owned.items()}
        library = getattr(inner, "inner", None)
        if isinstance(library, DTensorAdapter):
            library.state_dict()  # completes the state of the library's optimizer
        return {piece: (inner.state.get(tensor, {}), False) for piece, tensor in self._owned.items()}

    def _gather_whole(self, own: PieceStates) -> tuple[dict[int, dict[str, Any]], set[int]]:
        """`_merge_shards` with whole tensors in host memory, on every rank."""

        def put(into: dict[str, Any], key: str, value: Tensor, piece: Piece) -> None:
            if key not in into:
                into[key] = torch.empty(self._params[piece.parameter].shape, dtype=value.dtype)
            into[key].view(-1)[piece.start : piece.stop] = value

        return self._merge_shards(own, self._broadcast, put)

    def _gather_shards(self, own: PieceStates) -> tuple[dict[int, dict[str, Any]], set[int]]:
        """`_merge_shards` with a `TensorShard` in place of each tensor: values stay on the rank that owns them."""

        def fetch(value: Tensor | None, form: Outline, _: int) -> TensorShard:
            return TensorShard(form.shape, form.dtype, 0, value)

        def put(into: dict[str, Any], key: str, shard: TensorShard, piece: Piece) -> None:
            if shard.values is not None or key not in into:
                shape = tuple(self._params[piece.parameter].shape)
                into[key] = TensorShard(shape, shard.dtype, piece.start, shard.values)

        return self._merge_shards(own, fetch, put)

    def _merge_shards(
        self,
        own: PieceStates,
        fetch: Callable[[Tensor | None, Outline, int], Any],
        put: Callable[[dict[str, Any], str, Any, Piece], None],
    ) -> tuple[dict[int, dict[str, Any]], set[int]]:
        """(parameter index -> state, parameters that have taken no step), from all ranks' pieces.

        Args:
            own: states of this rank's pieces; tensors shaped like a slice are slices of one shaped like the parameter.
            fetch: (the owner's tensor, None on other ranks; its outline; the owner) -> its value in the result.
            put: (state of a parameter, key, fetched slice, its piece): add the slice.
        """
        outline = [
            (piece, map_leaves(dict(state), lambda leaf: Outline(leaf) if _is_large(leaf) else _on_host(leaf)), waits)
            for piece, (state, waits) in own.items()
        ]
        tensors = (leaf.detach() for state, _ in own.values() for _, leaf in leaves(dict(state)) if _is_large(leaf))
        merged: dict[int, dict[str, Any]] = {}
        waiting: set[int] = set()
        for owner, pieces in enumerate(self._all_gather(outline)):
            mine: Iterator[Tensor] | None = tensors if owner == self._rank else None
            for piece, state, waits in pieces:
                if waits:
                    waiting.add(piece.parameter)

                def resolve(leaf: Any, owner: int = owner, mine: Iterator[Tensor] | None = mine) -> Any:
                    if not isinstance(leaf, Outline):
                        return leaf  # such as a step count: equal for all pieces of a parameter
                    return fetch(None if mine is None else next(mine), leaf, owner)

                into = merged.setdefault(piece.parameter, {})
                is_cut = piece.numel != self._params[piece.parameter].numel()
                for key, value in map_leaves(state, resolve).items():
                    if is_cut and getattr(value, "shape", None) == (piece.numel,):
                        put(into, key, value, piece)
                    else:
                        into[key] = value
        return {i: state for i, state in sorted(merged.items()) if state}, waiting

    # ---- from parameters to pieces ----

    def _cut_state_dict(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The state_dict of this rank's pieces, from a whole one; a `TensorShard` in it is this rank's own."""
        piece_of = {id(tensor): piece for piece, tensor in self._owned.items()}
        keys = [key for group in saved["param_groups"] for key in group["params"]]
        waiting: set[int] = set()
        start = 0
        for group in saved["param_groups"]:
            waiting |= {start + k for k in group.get("unstepped", ())}
            start += len(group["params"])
        states: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        count = 0
        for saved_group, group in zip(saved["param_groups"], self._inner.param_groups, strict=True):
            ids = list(range(count, count + len(group["params"])))
            count += len(ids)
            pieces = [piece_of[id(tensor)] for tensor in group["params"]]
            for own, piece in zip(ids, pieces, strict=True):
                state = saved["state"].get(keys[piece.parameter])
                if state is not None:
                    states[own] = _cut_state(state, piece, self._params[piece.parameter].shape)
            cut = {**hyper(saved_group), "params": ids}
            if "unstepped" in saved_group:
                cut["unstepped"] = [k for k, piece in enumerate(pieces) if piece.parameter in waiting]
            groups.append(cut)
        return {"state": states, "param_groups": groups}

    # ---- messages ----

    def _broadcast(self, value: Tensor | None, form: Outline, owner: int) -> Tensor:
        if self._ranks == 1:
            assert value is not None
            return value.cpu().clone()
        group, device = self._group, torch.device("cpu")
        if dist.get_backend(group) == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        buffer = form.empty(device) if value is None else value.to(device).contiguous()
        dist.broadcast(buffer, src=dist.get_global_rank(group, owner) if group is not None else owner, group=group)
        return buffer.cpu().clone() if value is not None else buffer.cpu()

    def _all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [value] * self._ranks
        if self._ranks > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    def _agree(self, check: Callable[[], Any]) -> None:
        """Run a check of each rank's own pieces; all ranks raise where one does."""
        complaint = None
        try:
            check()
        except UserError as error:
            complaint = str(error)
        complaints = [text for text in self._all_gather(complaint) if text is not None]
        if complaints:
            raise UserError(complaints[0])


def _cut_state(state: Mapping[str, Any], piece: Piece, shape: torch.Size) -> dict[str, Any]:
    """A piece's state, from the state of its whole parameter; a `TensorShard` is the piece's already."""
    state = map_leaves(dict(state), lambda leaf: leaf.values if isinstance(leaf, TensorShard) else leaf)
    if piece.numel == shape.numel():
        return dict(state)
    whole = [key for key, value in state.items() if isinstance(value, Tensor) and value.shape == shape]
    return {**state, **{key: state[key].reshape(-1)[piece.start : piece.stop] for key in whole}}


def _is_large(value: Any) -> bool:
    """Whether a value is sent in a message of its own."""
    return isinstance(value, Tensor) and value.ndim > 0


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value

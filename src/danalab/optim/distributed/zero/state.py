"""The state of what a rank owns as the optimizer without sharding has it: brought together by all ranks, and cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.core.groups import hyper
from danalab.optim.distributed.dtensor import loading
from danalab.optim.distributed.dtensor.adapter import DTensorAdapter
from danalab.optim.distributed.zero.canonical import cut_state_dict, gather_states, own_states, part_states
from danalab.optim.distributed.zero.layout import Piece
from danalab.optim.distributed.zero.part import Part


class OwnedState:
    """State of the optimizer of this rank's pieces. All methods are collective."""

    def __init__(
        self, inner: Any, owned: Mapping[Piece, Tensor], params: Sequence[Tensor], group: Any, rank: int, ranks: int
    ):
        """Args:
        inner: the optimizer of the pieces.
        owned: this rank's pieces.
        params: all parameters, in the order of the groups.
        group, rank, ranks: who shares them.
        """
        self._inner, self._owned, self._params = inner, owned, params
        self._group, self._rank, self._ranks = group, rank, ranks

    def named(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, all of its state called `name`) on every rank, in host memory, one after another."""
        own = own_states(self._inner, self._owned)
        for i, p in enumerate(self._params):
            pieces = {
                piece: ({name: state[name]}, False)
                for piece, (state, _) in own.items()
                if piece.parameter == i and name in state
            }
            found, _ = gather_states(pieces, self._shapes, self._group, self._rank, self._ranks)
            if i in found:
                yield p, found[i][name]

    def state_dict(
        self, groups: Sequence[MutableMapping[str, Any]], optimizer_name: str, *, in_parts: bool = False
    ) -> dict[str, Any]:
        """The state_dict without sharding, on every rank, tensors in host memory.

        Args:
            groups: of the whole optimizer; they get the settings that a library adds at its first step.
            in_parts: with a `Part` in place of each tensor but numbers, of this rank's own state.
        """
        own = own_states(self._inner, self._owned)  # first: it may rehearse that first step, to complete the state
        for group, inner in zip(groups, self._inner.param_groups, strict=True):
            for key, value in hyper(inner).items():
                group.setdefault(key, value)
        gather = part_states if in_parts else gather_states
        states, waiting = gather(own, self._shapes, self._group, self._rank, self._ranks)
        saved_groups, start = [], 0
        for group in groups:
            stop = start + len(group["params"])
            saved = {**group, "params": list(range(start, stop))}
            if isinstance(self._inner, DTensorAdapter):
                saved["unstepped"] = [i - start for i in range(start, stop) if i in waiting]
                saved["made_by"] = optimizer_name
            saved_groups.append(saved)
            start = stop
        return {"state": states, "param_groups": saved_groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Cut this rank's part out of a whole state_dict, whose outline was checked, and load it.

        Raises:
            UserError: the optimizer of a rank refuses its part; nothing has changed then, on any.
        """
        inner = self._inner
        cut = cut_state_dict(saved, inner.param_groups, self._owned, self._shapes)
        if isinstance(inner, DTensorAdapter):
            self._agree(lambda: loading.check(inner, cut))
        self._agree(lambda: inner.load_state_dict(cut))

    def room(self, parameter: int, shape: Sequence[int], dtype: torch.dtype) -> Part:
        """Room for what this rank has of a tensor of a parameter's state; of a parameter that it doesn't own, nothing.

        Args:
            parameter: its number.
            shape: of the whole tensor; one shaped like the parameter is cut as that is.
        """
        piece = next((piece for piece in self._owned if piece.parameter == parameter), None)
        if piece is None:
            return Part(tuple(shape), dtype)
        whole = self._shapes[parameter]
        is_cut = tuple(shape) == tuple(whole) and piece.numel < whole.numel()
        start, size = (piece.start, (piece.numel,)) if is_cut else (0, tuple(shape))
        return Part(tuple(shape), dtype, start, torch.zeros(size, dtype=dtype, device=self._params[parameter].device))

    @property
    def _shapes(self) -> list[Any]:
        return [p.shape for p in self._params]

    def _agree(self, check: Callable[[], Any]) -> None:
        """Make sure of something on all ranks: each has pieces of its own to check."""
        complaint = None
        try:
            check()
        except UserError as error:
            complaint = str(error)
        complaints: list[Any] = [complaint]
        if self._ranks > 1:
            complaints = [None] * self._ranks
            dist.all_gather_object(complaints, complaint, group=self._group)
        found = [complaint for complaint in complaints if complaint is not None]
        if found:
            raise UserError(found[0])

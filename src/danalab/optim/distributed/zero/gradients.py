"""Gradients of replicated parameters: sent bucket by bucket, averaged, and measured where they end up, at owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.optim.distributed.zero.buckets import BucketTraffic
from danalab.optim.distributed.zero.layout import Piece


class SharedGradients:
    """The gradients of all buckets. All ranks call the same methods in the same order."""

    def __init__(
        self, traffic: Sequence[BucketTraffic], params: Sequence[Tensor], group: Any, ranks: int, overlap: bool
    ):
        """Args:
        params: all parameters, by whose numbers pieces go.
        overlap: send gradients during the backward pass.
        """
        self._traffic, self._params, self._group, self._ranks = traffic, params, group, ranks
        self._holding = False
        self._next = 0  # bucket that is sent next during a backward pass
        if overlap:
            for each in traffic:
                for i in each.bucket.parameters:
                    if params[i].requires_grad:
                        params[i].register_post_accumulate_grad_hook(partial(self._on_gradient, each, i))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, backward passes send nothing."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def launch(self) -> None:
        """Send what has not been sent, in the order of buckets, which all ranks share."""
        for traffic in self._traffic[self._next :]:
            if traffic.has_gradients or (traffic.grads is None and not traffic.is_reducing):
                traffic.launch_reduce()
        for traffic in self._traffic[: self._next]:
            if traffic.has_gradients:
                traffic.launch_reduce()
        self._next = 0

    def finish(self) -> None:
        """Wait for all that is under way."""
        for traffic in self._traffic:
            traffic.finish_reduce()

    def forget(self) -> None:
        """Drop the averaged gradients."""
        for traffic in self._traffic:
            traffic.forget()
        self._next = 0

    def owned(self) -> Iterator[tuple[Piece, Tensor]]:
        """The averaged gradients of this rank's pieces, of those that have one."""
        for traffic in self._traffic:
            for piece, g in (traffic.grads or {}).items():
                if g is not None:
                    yield piece, g

    def norms(self) -> Tensor:
        """Euclidean norm of each parameter's averaged gradient, [parameters], the same on all ranks. Collective."""
        device = self._params[0].device
        squares = torch.zeros(len(self._params), dtype=torch.float64, device=device)
        owned = list(self.owned())
        if owned:
            parameters = torch.tensor([piece.parameter for piece, _ in owned], device=device)
            # float64: in float32 squares would overflow where norms do not
            norms = torch.stack([n.double() for n in torch._foreach_norm([g for _, g in owned])])
            squares.index_add_(0, parameters, norms.square())
        if self._ranks > 1:
            dist.all_reduce(squares, group=self._group)
        return squares.sqrt().float()

    def scale(self, factor: Tensor) -> None:
        """Multiply them by a 0-dim tensor."""
        for _, g in self.owned():
            g.mul_(factor.to(g.dtype))

    def are_zero(self) -> bool:
        """Whether all gradients are zero, on all ranks. Collective."""
        self.finish()
        found = torch.zeros((), device=self._params[0].device)
        for _, g in self.owned():
            found += (g != 0).any()
        if self._ranks > 1:
            dist.all_reduce(found, group=self._group)
        return not bool(found)

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

"""Communication of ZeRO, bucket by bucket and asynchronous.

Gradients are averaged by a reduce-scatter and stay with the owners of their parameters; updated parameters return by an
all-gather.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from danalab.errors import UserError
from danalab.optim.distributed.zero.layout import Bucket, Piece


class BucketTraffic:
    """Communication of one bucket. All ranks call the same methods in the same order."""

    def __init__(self, bucket: Bucket, params: list[Tensor], names: list[str], group: Any, rank: int, ranks: int):
        self.bucket, self.params, self.names = bucket, params, names
        self.group, self.rank, self.ranks = group, rank, ranks
        self.own = [piece for piece in bucket.pieces if piece.owner == rank]
        self.grads: dict[Piece, Tensor | None] | None = None
        """Averaged gradient of each own piece (None: no rank had one); None before the first reduction."""
        self.arrived: set[int] = set()
        """Parameters whose gradient is complete in this backward pass."""
        self.reducing: tuple[Any, Tensor, Tensor, set[int]] | None = None
        self._gathering: tuple[Any, Tensor, Tensor] | None = None

    @property
    def complete(self) -> bool:
        """Whether all parameters' gradients are complete in this backward pass."""
        return all(i in self.arrived for i in self.bucket.parameters if self.params[i].requires_grad)

    def launch_reduce(self) -> None:
        """Start the reduction of all gradients and free them."""
        self.finish_reduce()
        self.arrived.clear()
        for i in self.bucket.parameters:
            g = self.params[i].grad
            if g is not None and g.layout != torch.strided:
                raise UserError(f"{self.names[i]} has a {g.layout} gradient; only dense ones can be sharded")
        if self.ranks == 1:
            self._add({piece: self._piece_of_grad(piece) for piece in self.own})
            self._free()
            return
        first = self.params[self.bucket.parameters[0]]
        sent = torch.zeros(self.ranks, self.bucket.chunk, dtype=first.dtype, device=first.device)
        present = {i for i in self.bucket.parameters if self.params[i].grad is not None}
        for piece in self.bucket.pieces:
            if piece.parameter in present:
                row = sent[piece.owner]
                row[piece.offset : piece.flag].copy_(self._flat(self.params[piece.parameter].grad, piece))
                row[piece.flag] = 1
        self._free()
        received = sent.new_empty(self.bucket.chunk)
        work = _reduce_scatter()(received, sent.view(-1), group=self.group, async_op=True)  # the sum
        self.reducing = (work, sent, received, present)

    def finish_reduce(self) -> None:
        """Wait for the reduction; gradients of own pieces are averages over all ranks afterwards."""
        if self.reducing is None:
            return
        work, _, received, present = self.reducing
        self.reducing = None
        work.wait()
        averages: dict[Piece, Tensor | None] = {}
        for piece in self.own:
            # The flag, which waits for the device, is only needed where this rank had no gradient.
            if piece.parameter in present or bool(received[piece.flag] != 0):
                averages[piece] = self._shaped(received[piece.offset : piece.flag].div_(self.ranks), piece)
            else:
                averages[piece] = None
        self._add(averages)

    def launch_gather(self) -> None:
        """Start the all-gather of updated pieces."""
        if self.ranks == 1:
            return
        first = self.params[self.bucket.parameters[0]]
        chunk = torch.zeros(self.bucket.chunk, dtype=first.dtype, device=first.device)
        for piece in self.own:
            chunk[piece.offset : piece.flag].copy_(self._flat(self.params[piece.parameter].detach(), piece))
        everything = chunk.new_empty(self.ranks * self.bucket.chunk)
        work = _all_gather()(everything, chunk, group=self.group, async_op=True)
        self._gathering = (work, chunk, everything.view(self.ranks, self.bucket.chunk))

    def finish_gather(self) -> None:
        """Wait for the other ranks' pieces and write them into the parameters."""
        if self._gathering is None:
            return
        work, _, everything = self._gathering
        self._gathering = None
        work.wait()
        for piece in self.bucket.pieces:
            if piece.owner != self.rank:
                new = everything[piece.owner, piece.offset : piece.flag]
                p = self.params[piece.parameter].detach()
                if piece.numel == p.numel():
                    p.copy_(new.view(p.shape))
                else:
                    p.view(-1)[piece.start : piece.stop].copy_(new)

    def forget(self) -> None:
        self.finish_reduce()
        self.arrived.clear()
        self.grads = None

    def _add(self, averages: dict[Piece, Tensor | None]) -> None:
        if self.grads is None:
            self.grads = averages
            return
        for piece, g in averages.items():
            old = self.grads[piece]
            self.grads[piece] = g if old is None else old if g is None else old.add_(g)

    def _free(self) -> None:
        for i in self.bucket.parameters:
            self.params[i].grad = None

    def _piece_of_grad(self, piece: Piece) -> Tensor | None:
        g = self.params[piece.parameter].grad
        return None if g is None else self._shaped(self._flat(g, piece), piece)

    def _flat(self, tensor: Any, piece: Piece) -> Tensor:
        return tensor.reshape(-1)[piece.start : piece.stop]

    def _shaped(self, flat: Tensor, piece: Piece) -> Tensor:
        p = self.params[piece.parameter]
        return flat.view(p.shape) if piece.numel == p.numel() else flat


class SharedGradients:
    """The gradients of all buckets. All ranks call the same methods in the same order.

    A rank sends either all buckets, in their order, or none: which gradients it lacks changes no message.
    """

    def __init__(
        self, traffic: Sequence[BucketTraffic], params: Sequence[Tensor], group: Any, ranks: int, overlap: bool
    ):
        """With `overlap`, gradients are sent during the backward pass."""
        self._traffic, self._params, self._group, self._ranks = traffic, params, group, ranks
        self._holding = False
        self._next: int | None = None  # the bucket to send next in this backward pass; None outside of one
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

    def _on_gradient(self, traffic: BucketTraffic, parameter: int, _: Tensor) -> None:
        if self._holding:
            return
        if self._next is None:
            self._next = 0
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)  # pyright: ignore
        traffic.arrived.add(parameter)
        while self._next < len(self._traffic) and self._traffic[self._next].complete:
            self._send_next()

    def _end_pass(self) -> None:
        """Send the buckets that wait for gradients which this backward pass does not have."""
        while self._next is not None and self._next < len(self._traffic):
            self._send_next()
        self._next = None

    @torch.no_grad()
    def _send_next(self) -> None:
        assert self._next is not None
        self._traffic[self._next].launch_reduce()
        self._next += 1

    def launch(self) -> None:
        """Send all buckets if a gradient has not been sent, or none was sent since the last step."""
        self._end_pass()  # of a backward pass that failed
        unsent = any(p.grad is not None for p in self._params)
        if unsent or any(each.grads is None and each.reducing is None for each in self._traffic):
            for each in self._traffic:
                each.launch_reduce()

    def finish(self) -> None:
        """Wait for all reductions."""
        for traffic in self._traffic:
            traffic.finish_reduce()

    def forget(self) -> None:
        for traffic in self._traffic:
            traffic.forget()
        self._next = None

    def owned(self) -> Iterator[tuple[Piece, Tensor]]:
        """The averaged gradients of this rank's pieces that have one."""
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
        """Multiply the averaged gradients by a 0-dim tensor."""
        for _, g in self.owned():
            g.mul_(factor.to(g.dtype))

    def are_zero(self) -> bool:
        """Whether all gradients are zero, on all ranks. Collective."""
        self.finish()
        nonzero = torch.zeros((), device=self._params[0].device)
        for _, g in self.owned():
            nonzero += (g != 0).any()
        if self._ranks > 1:
            dist.all_reduce(nonzero, group=self._group)
        return not bool(nonzero)


def _reduce_scatter() -> Any:
    # The older name warns where the newer one exists (torch 2.13).
    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _all_gather() -> Any:
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

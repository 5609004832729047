"""Proxies on which an optimizer of plain tensors steps in place of DTensor parameters.

plain tensor                    the tensor itself
DTensor, element-wise rule      its local shard (an alias); state is sharded like the parameter
DTensor, other rules            the whole tensor on one rank that owns it, gathered for each step
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from danalab.optim.catalogue import Row
from danalab.optim.distributed import require_supported
from danalab.optim.distributed.dtensor import layout
from danalab.optim.distributed.shards import owners
from danalab.optim.step.state import local, local_gradient


class Plain:
    """A plain tensor, which is its own proxy; and the interface of the other placements."""

    def __init__(self, p: Any):
        self.p = p
        self.proxy: Tensor | None = p

    def gather(self) -> None:
        """Set value and gradient of the proxy before a step."""

    def scatter(self) -> None:
        """Write the proxy's new value to the parameter."""

    def to_global(self, leaf: Any) -> Any:
        """A leaf of the proxy's state as state of the parameter."""
        return leaf

    def to_local(self, leaf: Any) -> Any:
        """A leaf of a state_dict as state of the proxy, copied."""
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = layout.whole_of(leaf)
        return leaf.to(self.p.device if leaf.ndim else leaf.device, copy=True)

    @property
    def shape(self) -> Any:
        """Shape of the proxy during a step."""
        return self.p.shape


class Empty(Plain):
    """A parameter without elements, which no rule need divide by: it has no proxy."""

    def __init__(self, p: Any):
        self.p, self.proxy = p, None


class LocalShard(Plain):
    """The local shard of a DTensor, for element-wise rules."""

    def __init__(self, p: Any):
        self.p = p
        self.proxy = Parameter(local(p.detach()), requires_grad=p.requires_grad)

    def gather(self) -> None:
        part = local(self.p.detach())
        if self.proxy.data_ptr() != part.data_ptr():  # pyright: ignore[reportOptionalMemberAccess]
            self.proxy.data = part  # pyright: ignore[reportOptionalMemberAccess]
        if self.p.grad is not None:
            self.proxy.grad = local_gradient(self.p.grad, self.p)  # pyright: ignore[reportOptionalMemberAccess]

    def scatter(self) -> None:
        self.proxy.grad = None  # pyright: ignore[reportOptionalMemberAccess]

    def process_groups(self) -> tuple[Any, ...]:
        """Groups over which a sum over the shard is reduced to a sum over the parameter, one after another."""
        mesh = self.p.device_mesh
        sharded = [d for d, placement in enumerate(self.p.placements) if not placement.is_replicate()]
        return tuple(mesh.get_group(d) for d in sharded if mesh.size(d) > 1)

    def to_global(self, leaf: Any) -> Any:
        same = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape == self.shape
        return layout.spread_like(leaf, self.p) if same else leaf

    def to_local(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        mesh, placements = self.p.device_mesh, self.p.placements
        if getattr(leaf, "placements", None) == placements and getattr(leaf, "device_mesh", None) == mesh:
            return local(leaf.detach()).to(self.p.device, copy=True)
        leaf = layout.whole_of(leaf)
        if leaf.ndim and leaf.shape == self.p.shape:
            return layout.cut(leaf, mesh, placements).to(self.p.device, copy=True).contiguous()
        return leaf.clone()

    @property
    def shape(self) -> Any:
        return local(self.p.detach()).shape


class OwnedFull(Plain):
    """The whole DTensor, on its owner; other ranks have no proxy. Between steps the proxy has no values."""

    def __init__(self, p: Any, owner: int):
        self.p, self.owner = p, owner
        self.mesh = p.device_mesh
        self.is_mine = layout.own_place(self.mesh) == owner
        self.proxy = None
        if self.is_mine:
            self.proxy = Parameter(torch.empty(p.shape, dtype=p.dtype, device=p.device), p.requires_grad)

    def gather(self) -> None:
        value = layout.whole_of(self.p)
        g = self.p.grad
        if g is not None:
            if g.placements != self.p.placements:
                g = g.redistribute(placements=self.p.placements)
            g = layout.whole_of(g)
        if self.proxy is not None:
            self.proxy.data = value.contiguous()
            self.proxy.grad = g

    def scatter(self) -> None:
        part = local(self.p.detach())
        if self.proxy is not None:
            value = self.proxy.data
            self.release()
        else:
            value = torch.empty(self.p.shape, dtype=part.dtype, device=part.device)
        part.copy_(layout.cut(layout.broadcast_(value, self.mesh, self.owner), self.mesh, self.p.placements))

    @property
    def is_cut_by_rows(self) -> bool:
        """Whether it is sharded by rows, as by FSDP2 alone, so that `RowExchange` applies."""
        kind = type(self.p.placements[0]).__name__
        return self.mesh.ndim == 1 and kind == "Shard" and self.p.placements[0].dim == 0

    def release(self) -> None:
        """Free the values; a matrix stays one, as checks of its group want it."""
        if self.proxy is not None:
            self.proxy.grad = None
            self.proxy.data = self.proxy.data.new_empty((0,) * max(self.proxy.ndim, 1))

    def to_global(self, leaf: Any) -> Any:
        """A DTensor from the owner's tensor and the other ranks' outline of it. Collective."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        if not isinstance(leaf, (Tensor, Outline)):
            return leaf
        value = leaf.empty(self.p.device) if isinstance(leaf, Outline) else leaf.detach().contiguous()
        on_host = value.device.type == "cpu" and self.p.device.type != "cpu"
        value = layout.broadcast_(value.to(self.p.device), self.mesh, self.owner)
        if value.ndim == 0:
            return value.cpu() if on_host else value
        if value.shape == self.p.shape:
            return layout.spread_like(layout.cut(value, self.mesh, self.p.placements).contiguous(), self.p)
        spread: Sequence[Any] = [*[Replicate()] * (self.mesh.ndim - 1), Shard(0)]
        part = layout.cut(value, self.mesh, spread).contiguous()
        return DTensor.from_local(part, self.mesh, spread, run_check=False, shape=value.shape, stride=value.stride())

    def to_local(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        value = layout.whole_of(leaf)
        return value.to(self.p.device if value.ndim else value.device, copy=True) if self.is_mine else None


def gather_rows(places: Sequence[OwnedFull]) -> Any:
    """`gather` for owned parameters sharded by rows on one mesh, of one dtype, all with gradients or none.

    Collective. Returns the exchange, for `scatter_rows`.
    """
    exchange = layout.RowExchange(
        [place.p.shape for place in places], [place.owner for place in places], places[0].mesh
    )
    values = exchange.to_owners([local(place.p.detach()) for place in places])
    with_grads = places[0].p.grad is not None
    grads = exchange.to_owners([local_gradient(place.p.grad, place.p) for place in places]) if with_grads else {}
    for i in exchange.mine:
        proxy = places[i].proxy
        assert proxy is not None
        proxy.data, proxy.grad = values[i], grads.get(i)
    return exchange


def scatter_rows(places: Sequence[OwnedFull], exchange: Any) -> None:
    """`scatter` after `gather_rows`. Collective."""
    values = {i: places[i].proxy.data for i in exchange.mine}  # pyright: ignore[reportOptionalMemberAccess]
    parts = [local(place.p.detach()) for place in places]
    for part, new in zip(parts, exchange.from_owners(values, parts[0]), strict=True):
        part.copy_(new)
    for place in places:
        place.release()


def place_parameters(spec: Row, params: Sequence[Any]) -> list[Plain]:
    """The placement of each parameter; ownership is balanced over the ranks of each mesh.

    UserError: the optimizer is not exact on sharded parameters.
    """
    places: list[Plain | None] = [None] * len(params)
    owned: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if getattr(p, "device_mesh", None) is None:
            places[i] = Plain(p) if p.numel() else Empty(p)
            continue
        require_supported(spec, "fsdp" if p.device_mesh.ndim == 1 else "fsdp+tp")
        if spec.elementwise or spec.sums_over_ranks or layout.is_whole(p):
            places[i] = LocalShard(p)
        else:
            owned.setdefault(p.device_mesh, []).append(i)
    for mesh, indices in owned.items():
        costs = [_cost(params[i].shape) for i in indices]
        for i, owner in zip(indices, owners(costs, mesh.size()), strict=True):
            places[i] = OwnedFull(params[i], owner)
    return [place for place in places if place is not None]


def by_rows(places: Sequence[Plain]) -> tuple[list[list[OwnedFull]], list[Plain]]:
    """Lists of owned parameters that can be exchanged together, and all other placements."""
    alike: dict[Any, list[OwnedFull]] = {}
    others: list[Plain] = []
    for place in places:
        if isinstance(place, OwnedFull) and place.is_cut_by_rows:
            g = place.p.grad
            alike.setdefault((place.mesh, place.p.dtype, None if g is None else g.dtype), []).append(place)
        else:
            others.append(place)
    return list(alike.values()), others


def _cost(shape: Sequence[int]) -> float:
    """Approximate cost of updating a whole parameter: memory, and products with preconditioners."""
    numel = 1.0
    for length in shape:
        numel *= length
    return numel * (100 + (sum(shape) if len(shape) > 1 else 0))


class Outline:
    """Shape and dtype of a tensor."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every leaf (all but lists, tuples and dicts)."""
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(item, change) for item in value)
    return change(value)


def as_tensors(value: Any) -> Any:
    """`value` with floats as 0-dim float64 tensors: some libraries keep a value as either."""
    return map_leaves(value, lambda leaf: torch.tensor(leaf, dtype=torch.float64) if type(leaf) is float else leaf)


def as_kept(value: Any, example: Any) -> Any:
    """`value` in the dtypes of `example`: the state of a run may have been saved in others.

    0-dim tensors become floats where the example has floats; others are step counts and keep their dtype.
    """
    if isinstance(value, dict):
        known = example if isinstance(example, dict) else {}
        return {key: as_kept(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        alike = isinstance(example, (list, tuple)) and len(example) == len(value)
        known = example if alike else [None] * len(value)
        return type(value)(as_kept(item, other) for item, other in zip(value, known, strict=True))
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:
        return value.item() if isinstance(example, float) else value
    is_moment = isinstance(example, Tensor) and value.is_floating_point() and example.is_floating_point()
    return value.to(example.dtype) if is_moment else value


def outline_of(value: Any) -> Any:
    """`value` with `Outline`s in place of tensors."""
    return map_leaves(value, lambda leaf: Outline(leaf) if isinstance(leaf, Tensor) else leaf)

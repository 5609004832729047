"""The Triton back end for CUDA devices: one launch updates all parameters of a batch (`triton_kernel`).

The kernel finds its tensors by a table of their addresses in device memory, which is uploaded when an address has
changed. Before a rule's kernel is relied on, it is compared with the reference on a few thousand numbers.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from danalab.errors import UserError, first_line
from danalab.optim.rules.rule import Rule
from danalab.optim.step.backends.kernel_arguments import kernel_scalars, same_order
from danalab.optim.step.backends.rounding import store_rounded
from danalab.optim.step.batch import TensorBatch
from danalab.optim.step.state import moment_dtype

log = logging.getLogger(__name__)

LARGEST_ERROR = 1e-4
"""Between kernel and reference in float32, relative to the largest number."""
_TABLES = 1024  # largest number of address tables: one for each batch of an optimizer

_trusted: dict[tuple[str, bool, int], bool] = {}
_layouts: dict[Any, tuple[Tensor, Tensor]] = {}
_tables: dict[tuple[int, int], "AddressTable"] = {}
_captured: list[Tensor] = []  # tables that CUDA graphs read whenever they are replayed: never freed


class KernelLaunch:
    """Launches of a rule's kernel, one for each batch. It has addresses: keep the tensors alive.

    Args:
        params, moments: of all batches, in order; laid out alike, moments in their dtype.
    """

    def __init__(
        self, rule: Rule, batches: list[TensorBatch], params: Sequence[Tensor], moments: Sequence[Sequence[Tensor]]
    ):
        self._rule, self._batches, self._params = rule, batches, params
        first, self._parts = 0, list[tuple[int, int, list[int], list[int]]]()
        for batch in batches:
            end = first + len(batch.params)
            own = [p.data_ptr() for p in params[first:end]]
            state = [moment.data_ptr() for column in zip(*moments[first:end], strict=True) for moment in column]
            self._parts.append((first, end, own, state))
            first = end

    def run(self, grads: Sequence[int]) -> None:
        """Update the parameters in place, given the addresses of their gradients."""
        for batch, (first, end, own, state) in zip(self._batches, self._parts, strict=True):
            _launch(self._rule, batch, self._params[first:end], [*own, *grads[first:end], *state])


def fused(rule: Rule, batches: list[TensorBatch]) -> None:
    """The update of each batch in one launch."""
    for batch in batches:
        params, grads = batch.params, batch.grads
        # Random rounding works on a float32 copy: its noise is a function of each element's position.
        random = batch.group["stochastic_rounding"] and params[0].dtype in (torch.bfloat16, torch.float16)
        each = zip(params, grads, batch.moments, strict=True)
        copied = random or not all(same_order(p, g, moments[0]) for p, g, moments in each)
        if copied:
            params, grads = (
                [torch.empty_like(moments[0]).copy_(x) for x, moments in zip(tensors, batch.moments, strict=True)]
                for tensors in (params, grads)
            )
        KernelLaunch(rule, [batch], params, batch.moments).run([g.data_ptr() for g in grads])
        for i, p in enumerate(batch.params if copied else ()):
            store_rounded(p, params[i], batch, i)


def _launch(rule: Rule, batch: TensorBatch, params: Sequence[Tensor], addresses: list[int]) -> None:
    """One launch. Args: addresses: of parameters, gradients and moments, all of one kind after another."""
    kernel = _kernel()
    device, state = params[0].device, moment_dtype(params[0])
    owners, numbers = _layout(tuple(p.numel() for p in params), device, kernel.BLOCK)
    if not len(owners):
        return
    table = _tables.setdefault((addresses[2 * len(params)], len(params)), AddressTable())
    while len(_tables) > _TABLES:
        del _tables[next(iter(_tables))]
    scalars = rule.scalars(batch.settings, batch.t)
    values = batch.on_device(kernel_scalars(rule, batch.group, scalars).values())
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel.update[(len(owners),)](
            table.upload(addresses, device, spare=bool(batch.group["capturable"])),
            numbers,
            owners,
            values,
            owners if batch.skip is None else batch.skip,
            len(params),
            values.shape[1],
            RULE=rule.name,
            CLIP=scalars.get("clipsnr") is not None,
            CAUTIOUS=bool(scalars.get("cautious")),
            SKIPS=batch.skip is not None,
            PARAMETER=kernel.DTYPES[params[0].dtype],
            STATE=kernel.DTYPES[state],
            ALIGNED=table.is_aligned,
            BLOCK=kernel.BLOCK,
            num_warps=kernel.WARPS,
        )


def _layout(numels: tuple[int, ...], device: torch.device, block: int) -> tuple[Tensor, Tensor]:
    """(parameter of each block, int32 [blocks]; elements and first block of each parameter, int64 [2, parameters])."""
    key = (numels, device)
    if key not in _layouts:
        sizes = torch.tensor(numels)
        blocks = (sizes + block - 1) // block
        owners = torch.repeat_interleave(torch.arange(len(numels), dtype=torch.int32), blocks)
        _layouts[key] = owners.to(device), torch.stack([sizes, blocks.cumsum(0) - blocks]).to(device)
    return _layouts[key]


class AddressTable:
    """Addresses of an optimizer's tensors, in device memory."""

    def __init__(self) -> None:
        self.is_aligned = False
        """Whether all are multiples of 16."""
        self._addresses: list[int] = []
        self._table: Tensor | None = None
        self._spare: Tensor | None = None

    def upload(self, addresses: list[int], device: torch.device, *, spare: bool) -> Tensor:
        """The table, int64; `spare`: also keep memory for the capture of a CUDA graph.

        UserError: a graph is captured, and no step was made before.
        """
        captures = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if self._table is None or self._addresses != addresses:
            self.is_aligned = not any(address % 16 for address in addresses)
            if captures:
                return self._upload_in_graph(addresses, device)
            host = torch.tensor(addresses)
            if device.type == "cuda":
                host = host.pin_memory()
                if spare and self._spare is None:
                    self._spare = torch.empty_like(host, pin_memory=True)
            self._addresses, self._table = addresses, host.to(device, non_blocking=True)
        if captures:
            _captured.append(self._table)
        return self._table

    def _upload_in_graph(self, addresses: list[int], device: torch.device) -> Tensor:
        """The copy is a part of the graph: each replay reads the host's memory, which is allocated before and kept."""
        host, self._spare, self._table = self._spare, None, None
        if host is None:
            raise UserError("an optimizer step is captured in a CUDA graph; make a step outside of the graph before")
        _captured.append(host.copy_(torch.tensor(addresses)))
        return torch.empty_like(host, device=device).copy_(host, non_blocking=True)


def is_installed() -> bool:
    """Whether there is Triton, and a device for it."""
    from torch.utils._triton import has_triton

    return has_triton()


def can_run(rule: Rule, group: Mapping[str, Any]) -> bool:
    """Whether the current CUDA device can run a rule's kernel, and it computes what the reference does."""
    if rule.kernel_scalars is None or not is_installed():
        return False
    device = torch.device("cuda", torch.cuda.current_device())
    key = (rule.name, bool(group.get("cautious_decay")), device.index)
    if key not in _trusted:
        if torch.cuda.is_current_stream_capturing():
            return False
        _trusted[key] = agrees(rule, group, device)
    return _trusted[key]


def agrees(rule: Rule, group: Mapping[str, Any], device: torch.device) -> bool:
    """Whether a step of the kernel gives the numbers of the reference; logs where it does not."""
    draw = torch.Generator().manual_seed(0)
    sizes = (1500, 5)
    params, grads, *rest = ([torch.randn(n, generator=draw).to(device) for n in sizes] for _ in range(3))
    moments = [[m, *(torch.rand(len(m), generator=draw).to(device) for _ in rule.moments[1:])] for m in rest[0]]
    settings = {**group, "lr": 0.1, "peak_lr": 0.1, "capturable": False, "stochastic_rounding": False}
    batch = TensorBatch(settings, 7, None, params, grads, moments, [0, 1])
    scalars = rule.scalars(settings, 7)
    signed = batch.signed_grads()
    want = [rule.update(p, g, *own, **scalars) for p, g, own in zip(params, signed, moments, strict=True)]
    try:
        fused(rule, [batch])
        got = [tensor for p, own in zip(params, moments, strict=True) for tensor in (p, *own)]
        errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, chain(*want), strict=True)]
    except Exception as failure:  # Triton compiles and loads: what it raises is not documented
        reason = first_line(failure)
    else:
        if all(error <= LARGEST_ERROR for error in errors):  # false for NaN
            return True
        reason = f"it differs from the reference by {max(errors):.1e}"
    log.warning("the fused optimizer step in Triton is not used, steps will take longer: %s", reason)
    return False


def _kernel() -> Any:
    from danalab.optim.step.backends import triton_kernel

    return triton_kernel

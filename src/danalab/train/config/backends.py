"""Ways in which the ranks of a run share the work: one row for each --distributed-backend. Needs no torch.

    single   one process
    ddp      replicas, which sum their gradients
    zero     replicas; each rank updates the parameters that it owns
    fsdp     each rank holds a shard of every weight, gradient and moment

These ranks step together, in one process group. A row of an annex or a plugin may share the work otherwise, with
settings of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from danalab.errors import UserError
from danalab.registry import Registry

Ranks = list[subprocess.Popen[bytes]]
Wait = Callable[[Ranks, Sequence[int], Callable[[int], subprocess.Popen[bytes]]], list[int | None]]
"""(processes, signals received, start of rank k) -> exit codes when the run has ended; None: it does not count."""


@dataclass(frozen=True)
class RankLayout:
    """The layout of a job's ranks."""

    backend: str = "single"
    """Its name in `BACKENDS`."""
    tp_size: int = 1
    """Ranks that split each matrix product."""
    replicas: int = 1
    """fsdp: number of whole copies of the model."""
    expert_parallel: bool = False
    """ddp, fsdp: whether each rank holds some of the experts, and tokens are sent to them."""

    @property
    def kind(self) -> DistributedBackend:
        """What the backend is."""
        return BACKENDS.get(self.backend)

    def shape(self, size: int) -> dict[str, int]:
        """Ranks along each dimension of the mesh of `size` ranks, which they must divide; empty for one process."""
        return self.kind.shape(self, size)

    @property
    def mode(self) -> str:
        """The parallel mode that the optimizer must support: "single", "ddp", "zero", "fsdp" or "fsdp+tp"."""
        if self.expert_parallel:
            return "fsdp"  # experts are sharded under ddp too
        return "fsdp+tp" if self.tp_size > 1 else self.backend


@dataclass(frozen=True, kw_only=True)
class DistributedBackend:
    """What the trainer asks of a --distributed-backend."""

    strategy: str
    """Its `ParallelStrategy`, as MODULE:NAME."""
    shape: Callable[[RankLayout, int], dict[str, int]]
    """(layout, ranks) -> ranks along each dimension of their mesh, see `RankLayout.shape`."""
    whole_model: bool = True
    """Whether each rank has the weights that are trained, whole, between two steps."""
    check: Callable[[Any], None] | None = None
    """Refuses a `RunSpec` that it cannot train; None, for the names here alone: what optimizer and model allow."""
    join: Callable[[RankLayout, str], Any] | None = None
    """(layout, cpu or cuda) -> the `World` of this process; None: the process group of all ranks."""
    rank_spec: Callable[[Any, Any], Any] = lambda spec, world: spec
    """(`RunSpec`, `World`) -> the run as this process carries it out."""
    wait: Wait | None = None
    """How --nproc waits for the processes; None: until all have ended, or one has failed."""
    metrics: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Its keys in rows of metrics: key -> (unit, meaning), see `danalab.train.run.metrics.METRICS`."""


def _one(layout: RankLayout, size: int) -> dict[str, int]:
    if size != 1:
        raise UserError(f"--distributed-backend single is one process, but {size} were started; give ddp")
    return {}


def _replicas(layout: RankLayout, size: int) -> dict[str, int]:
    return {"replicate": size}


def _shards(layout: RankLayout, size: int) -> dict[str, int]:
    inner = layout.tp_size * layout.replicas
    if size % inner:
        sizes = (("tp-size", layout.tp_size), ("replicas", layout.replicas))
        words = " x ".join(f"--{name} {value}" for name, value in sizes if value > 1)
        raise UserError(f"{words}: {size} ranks cannot be divided by {inner}; start a multiple of {inner}")
    dims = {"replicate": layout.replicas} if layout.replicas > 1 else {}
    dims["shard"] = size // inner
    return dims | ({"tp": layout.tp_size} if layout.tp_size > 1 else {})


BACKENDS: Registry[DistributedBackend] = Registry("distributed backend")
_MODULE = "danalab.train.parallel.strategy"
BACKENDS.add("single", DistributedBackend(strategy=f"{_MODULE}:ParallelStrategy", shape=_one, check=lambda spec: None))
BACKENDS.add("ddp", DistributedBackend(strategy=f"{_MODULE}:DDPStrategy", shape=_replicas), "nccl", "gloo")
BACKENDS.add("zero", DistributedBackend(strategy=f"{_MODULE}:ZeROStrategy", shape=_replicas))
BACKENDS.add("fsdp", DistributedBackend(strategy=f"{_MODULE}:FSDPStrategy", shape=_shards, whole_model=False))

"""The ranks of a run and their collectives. A single process needs nothing of torch.distributed.

ranks = replicate x shard x tp        dp_size = replicate x shard: ranks that see different data
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from danalab.errors import FirstRankError, LostRankError, UserError, first_line
from danalab.train.parallel.layout import Place, RankLayout, find_place

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

FIRST_STEP_TIMEOUT = timedelta(minutes=30)
"""Timeout of collectives at the start: ranks compile, read and verify checkpoints at different speeds."""


@dataclass(frozen=True)
class World:
    """This process and its place among the processes of the run."""

    rank: int = 0
    size: int = 1
    mesh: "DeviceMesh | None" = None
    """Dimensions named among "replicate", "shard", "tp", in this order; None for one process."""
    dp_rank: int = 0
    """Index of this rank's part of each batch."""
    dp_size: int = 1
    tp_size: int = 1
    control: "ProcessGroup | None" = field(default=None, repr=False)
    """A gloo group for flags and small objects, separate from the default group, which the GPUs keep busy. Only for
    the main thread."""
    background: "ProcessGroup | None" = field(default=None, repr=False)
    """Another gloo group, for a background thread: two threads must not share a group."""
    layout: RankLayout = field(default_factory=RankLayout)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes metrics, summary and logs."""
        return self.rank == 0

    def agree(self, flag: int) -> int:
        """The largest `flag` of all ranks. Collective."""
        if self.control is None:
            return flag
        import torch
        import torch.distributed as dist

        value = torch.tensor(flag, dtype=torch.int64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.control)
        return int(value)

    def sums(self, values: list[float]) -> list[float]:
        """Each of `values` summed over data-parallel ranks; tensor-parallel ranks hold equal values. Collective."""
        if self.control is None:
            return values
        import torch
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return (total / self.tp_size).tolist()

    def gather(self, obj: Any) -> list[Any]:
        """Every rank's `obj` (picklable, small), in order of ranks, on every rank. Collective."""
        if self.control is None:
            return [obj]
        import torch.distributed as dist

        objects: list[Any] = [None] * self.size
        dist.all_gather_object(objects, obj, group=self.control)
        return objects

    def broadcast(self, obj: Any) -> Any:
        """Rank 0's `obj` (picklable, small), on every rank; other ranks' is ignored. Collective."""
        if self.control is None:
            return obj
        import torch.distributed as dist

        objects = [obj if self.is_main else None]
        dist.broadcast_object_list(objects, src=0, group=self.control)
        return objects[0]

    def compute_on_rank0(self, compute: Callable[[], T]) -> T:
        """The result of `compute` on rank 0 (picklable), on every rank.

        Collective. Rank 0 raises its UserError, others `FirstRankError`.
        """
        if self.size == 1:
            return compute()
        result, error = None, None
        if self.is_main:
            try:
                result = compute()
            except UserError as caught:
                error = caught
        result, message = self.broadcast((result, None if error is None else str(error)))
        if error is not None:
            raise error
        if message is not None:
            raise FirstRankError(message)
        return result

    def set_collective_timeout(self, seconds: float) -> None:
        """Set the time [s] after which a rank that does not answer counts as lost."""
        if self.control is None:
            return
        from torch.distributed import distributed_c10d

        groups = [distributed_c10d._get_default_group()]
        if self.mesh is not None:
            groups += [self.mesh.get_group(i) for i in range(self.mesh.ndim)]
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), self.control)
        for group in groups:
            # Flags time out first, with an error that names the rank; NCCL's watchdog would end the process.
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds + 1), group)


def join(layout: RankLayout, device_type: str) -> World:
    """Join the ranks that torchrun or srun started; alone, a world of one. Collective. An existing group is kept.

    `device_type` is "cuda" (NCCL) or "cpu" (gloo). UserError: the layout does not fit the number of ranks, or the other
    ranks could not be reached.
    """
    import torch.distributed as dist

    started = dist.is_available() and dist.is_initialized()
    place = None if started else find_place(os.environ) or Place(0, 1, 0, "", 0, "alone")
    if layout.backend == "single" and (dist.get_world_size() if place is None else place.size) == 1:
        return World()
    if place is not None:
        layout.shape(place.size)  # raises before waiting for other ranks
        _start(place, device_type)
    return _arrange(layout, device_type)


def own_gpu(local_rank: int, gpus: int, launcher: str) -> int:
    """Index of a rank's GPU."""
    if launcher == "srun" and gpus == 1:
        return 0  # SLURM shows each task only its own GPU
    if local_rank >= gpus:
        raise UserError(
            f"rank {local_rank} of this machine has no GPU: start {gpus} ranks, or give --device cpu"
        )
    return local_rank


def _start(place: Place, device_type: str) -> None:
    import torch
    import torch.distributed as dist

    backend, device = "gloo", None
    if device_type == "cuda":
        device = torch.device("cuda", own_gpu(place.local_rank, torch.cuda.device_count(), place.launcher))
        torch.cuda.set_device(device)
        backend = "nccl"
    own = {"init_method": f"tcp://{place.address}:{place.port}", "rank": place.rank, "world_size": place.size}
    how = {
        "alone": {"store": dist.HashStore(), "rank": 0, "world_size": 1},
        "torchrun": {},  # the launcher's store
        "srun": own,
    }[place.launcher]
    try:
        # With its device named, a rank's barrier need not guess it, and subgroups split the communicator of all.
        dist.init_process_group(backend, timeout=FIRST_STEP_TIMEOUT, device_id=device, **how)
    except (RuntimeError, ValueError) as error:
        others = f"the other {place.size - 1} at {place.address}:{place.port}"
        raise UserError(f"rank {place.rank} could not reach {others}: {first_line(error)}") from error


def _arrange(layout: RankLayout, device_type: str) -> World:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    shape = layout.shape(size)
    mesh = (
        init_device_mesh(device_type, tuple(shape.values()), mesh_dim_names=tuple(shape)) if shape else None
    )
    at = dict(zip(shape, mesh.get_coordinate() or (), strict=True)) if mesh is not None else {}
    return World(
        rank=dist.get_rank(),
        size=size,
        mesh=mesh,
        dp_rank=at.get("replicate", 0) * shape.get("shard", 1) + at.get("shard", 0),
        dp_size=shape.get("replicate", 1) * shape.get("shard", 1),
        tp_size=shape.get("tp", 1),
        control=cast("ProcessGroup", dist.new_group(backend="gloo", timeout=FIRST_STEP_TIMEOUT)),
        background=cast("ProcessGroup", dist.new_group(backend="gloo", timeout=FIRST_STEP_TIMEOUT)),
        layout=layout,
    )


@contextlib.contextmanager
def joined(layout: RankLayout, device_type: str) -> Iterator[World]:
    """`join`, and destroy the process groups after the block; where it fails, that would wait for dead ranks."""
    import torch.distributed as dist

    existed = dist.is_initialized()
    world = join(layout, device_type)
    yield world
    if dist.is_initialized() and not existed:
        dist.destroy_process_group()


ROLL_CALL_SECONDS = 2.0
"""How long ranks that lost another rank wait for answers from the others."""


@contextlib.contextmanager
def report_lost_ranks(world: World) -> Iterator[None]:
    """A LostRankError names ranks whose loss breaks this one's connection; its own failure leaves others a message."""
    try:
        yield
    except Exception as error:
        if world.size == 1:
            raise
        if not _is_loss(error):
            with contextlib.suppress(Exception):  # the original error is raised below
                _store().set(f"danalab/failed/{world.rank}", f"{type(error).__name__}: {error}"[:500])
            raise
        raise _lost(world, error) from error


def _is_loss(error: BaseException | None) -> bool:
    """Whether a collective failed; also as the cause of a UserError."""
    from torch.distributed import DistError

    while error is not None:
        if isinstance(error, DistError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__
    return False


_SIGNS = (
    "gloo",
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "Broken pipe",
    "NCCL",
)


def _lost(world: World, error: Exception) -> LostRankError:
    """Find the lost ranks: every living rank writes to the store that the process group was created with."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now; first report the reason
    here, failed = {world.rank}, {}
    try:
        store = _store()
        store.set(f"danalab/here/{world.rank}", "yes")
        deadline = time.monotonic() + ROLL_CALL_SECONDS
        while len(here) + len(failed) < world.size and time.monotonic() < deadline:
            for rank in set(range(world.size)) - here - set(failed):
                if store.check([f"danalab/failed/{rank}"]):
                    failed[rank] = store.get(f"danalab/failed/{rank}").decode()
                elif store.check([f"danalab/here/{rank}"]):
                    here.add(rank)
            time.sleep(0.05)
    except RuntimeError:  # without a launcher, rank 0 holds the store
        here.discard(0)
    gone = sorted(set(range(world.size)) - here - set(failed))
    words = [f"rank {rank} failed: {text}" for rank, text in sorted(failed.items())]
    if gone:
        words.append(f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))} died or stopped answering")
    if not words:
        words.append(f"ranks lost each other: {first_line(error)}")
    text = "; ".join(words) + "; start the job again to resume from the last checkpoint"
    return LostRankError(text, quiet=world.rank != min(here | {world.rank}), in_rank=True)


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()

"""The layout of a job's ranks, this process's place among them, and whether a run can use it. No torch.

    single   one process
    ddp      replicas, which sum their gradients
    zero     replicas; each rank updates the parameters that it owns
    fsdp     each rank holds a shard of every weight, gradient and moment
    diloco   workers that step alone and average their weights every few hundred steps

torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
srun:     SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; rank 0 is on the first host of SLURM_STEP_NODELIST
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from danalab.errors import UserError

if TYPE_CHECKING:
    from danalab.train.config.train_config import TrainConfig


@dataclass(frozen=True)
class RankLayout:
    """The layout of a job's ranks."""

    backend: str = "single"
    """single, ddp, zero, fsdp or diloco."""
    tp_size: int = 1
    """Ranks that split each matrix product."""
    replicas: int = 1
    """fsdp: number of whole copies of the model."""
    expert_parallel: bool = False
    """ddp, fsdp: whether each rank holds some of the experts, and tokens are sent to them."""

    def shape(self, size: int) -> dict[str, int]:
        """Ranks along each dimension of the mesh of `size` ranks, which they must divide; empty for one process."""
        if self.backend == "single":
            if size != 1:
                raise UserError(
                    f"--distributed-backend single is one process, but {size} were started; give ddp"
                )
            return {}
        if self.backend != "fsdp":
            return {"replicate": size}
        inner = self.tp_size * self.replicas
        if size % inner:
            sizes = (("tp-size", self.tp_size), ("replicas", self.replicas))
            words = " x ".join(f"--{name} {value}" for name, value in sizes if value > 1)
            raise UserError(
                f"{words}: {size} ranks cannot be divided by {inner}; start a multiple of {inner}"
            )
        dims = {"replicate": self.replicas} if self.replicas > 1 else {}
        dims["shard"] = size // inner
        return dims | ({"tp": self.tp_size} if self.tp_size > 1 else {})

    @property
    def mode(self) -> str:
        """The parallel mode that the optimizer must support: "single", "ddp", "zero", "fsdp" or "fsdp+tp"."""
        if self.expert_parallel:
            return "fsdp"  # experts are sharded under ddp too
        return "fsdp+tp" if self.tp_size > 1 else self.backend


def data_parallel_size(shape: Mapping[str, int]) -> int:
    """Ranks that see different data."""
    return math.prod(ranks for dim, ranks in shape.items() if dim != "tp")


def data_parallel_ranks(config: TrainConfig, environment: Mapping[str, str]) -> int:
    """Ranks that will see different data, from flags and environment alone."""
    place = find_place(environment)
    size = (config.nproc or 1) if place is None else place.size
    return data_parallel_size(layout_of(config, environment).shape(size))


def layout_of(config: TrainConfig, environment: Mapping[str, str]) -> RankLayout:
    """The layout that the flags ask for; by default single for one process, ddp for several."""
    place = find_place(environment)
    size = config.nproc or 1
    if place is not None:
        size = place.size
        if config.nproc not in (None, size):
            raise UserError(
                f"--nproc {config.nproc}: {place.launcher} started {size} ranks already; leave --nproc out"
            )
    if size > 1 and ":" in (config.device or ""):
        raise UserError(
            f"--device {config.device}: {size} ranks would share it; give --device cuda, one for each rank"
        )
    backend = config.usual_backend(size)
    if config.expert_parallel and size == 1:
        raise UserError("--expert-parallel: there is only one rank; give --nproc, or leave it out")
    return RankLayout(backend, config.tp_size, config.replicas, config.expert_parallel)


def check_parallel(resolved: TrainConfig, layout: RankLayout, ranks: int) -> None:
    """UserError, before anything is built, where a run's optimizer or sizes do not allow a layout."""
    if layout.backend == "diloco":
        if resolved.opt.startswith(("sf-", "snoo")):
            why = "keeps weights of its own, which DiLoCo's outer step would not update"
            raise UserError(
                f"--opt {resolved.opt}: {why}; take another one, or another --distributed-backend"
            )
        if resolved.ema is not None:
            raise UserError("--ema: DiLoCo's outer weights are an average already; leave it out")
        return
    if layout.backend == "single":
        return
    from danalab.optim.sharded import require_supported

    require_supported(resolved.opt, layout.mode)
    if layout.expert_parallel:
        from danalab.models.parallel import check_expert_parallel

        check_expert_parallel(resolved.model, ranks)
    if layout.tp_size > 1:
        from danalab.models.parallel import check_tensor_parallel

        check_tensor_parallel(resolved.model, layout.tp_size)


FIRST_PORT, PORTS = 20000, 20000


@dataclass(frozen=True)
class Place:
    """A process among the processes of a job."""

    rank: int
    size: int
    local_rank: int
    """Its rank among the processes of this machine."""
    address: str
    """Address at which rank 0 listens."""
    port: int
    launcher: str
    """"torchrun" or "srun"."""


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave to this process, or None."""
    get = environment.get
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, address = environment["RANK"], get("MASTER_ADDR", "127.0.0.1")
        port, local_rank = int(get("MASTER_PORT", FIRST_PORT)), int(get("LOCAL_RANK", rank))
        return Place(int(rank), int(environment["WORLD_SIZE"]), local_rank, address, port, "torchrun")
    # Only srun sets the node list of a step: the shell of an sbatch or salloc job is a single process.
    if "SLURM_STEP_NODELIST" not in environment or "SLURM_PROCID" not in environment:
        return None
    size = int(get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"])
    step = get("SLURM_STEP_ID", "0")
    # Jobs on the same machine need different ports.
    own_port = FIRST_PORT + (int(get("SLURM_JOB_ID", 0)) * 7 + int(step if step.isdigit() else 0)) % PORTS
    place = Place(
        rank=int(environment["SLURM_PROCID"]),
        size=size,
        local_rank=int(environment["SLURM_LOCALID"]),
        address=get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        port=int(get("MASTER_PORT", own_port)),
        launcher="srun",
    )
    return place if size > 1 else None


def first_host(nodes: str) -> str:
    """The first host of SLURM's compressed list: "gpu[03-05,9],login" -> "gpu03"."""
    match = re.match(r"([^\[,\s]+)(?:\[(\d+)[^\]]*\]([^\[,\s]*))?(?=,|$)", nodes.strip())
    if match is None:
        raise UserError(
            f"SLURM_STEP_NODELIST={nodes!r}: not a list of hosts; set MASTER_ADDR to the first host's name"
        )
    head, number, tail = match.groups()
    return head + (number or "") + (tail or "")

"""This process's rank and number of ranks, from the environment variables of torchrun or srun. No torch.

torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
srun:     SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; rank 0 is on the first host of SLURM_STEP_NODELIST
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from danalab.errors import UserError

FIRST_PORT, PORTS = 20000, 20000


@dataclass(frozen=True)
class Place:
    """A process among the processes of a job."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of this machine."""
    address: str
    """Where rank 0 listens."""
    port: int
    launcher: str
    """"torchrun" or "srun"."""


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave to this process; None for a process without a launcher.

    Raises:
        UserError: a variable is not a number, or another variable of its launcher is missing.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(
            rank=_number(environment, "RANK"),
            size=_number(environment, "WORLD_SIZE"),
            local_rank=_number(environment, "LOCAL_RANK", "RANK"),
            address=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else FIRST_PORT,
            launcher="torchrun",
        )
    # Only srun sets the node list of a step: the shell of an sbatch or salloc job is a single process.
    if "SLURM_STEP_NODELIST" in environment and "SLURM_PROCID" in environment:
        size = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        if size == 1:
            return None
        job = _number(environment, "SLURM_JOB_ID", "SLURM_JOBID") if _has_job(environment) else 0
        step = int(environment.get("SLURM_STEP_ID", "0")) if environment.get("SLURM_STEP_ID", "0").isdigit() else 0
        return Place(
            rank=_number(environment, "SLURM_PROCID"),
            size=size,
            local_rank=_number(environment, "SLURM_LOCALID"),
            address=environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
            # Jobs on the same machine need different ports.
            port=int(environment["MASTER_PORT"]) if environment.get("MASTER_PORT", "").isdigit()
            else FIRST_PORT + (job * 7 + step) % PORTS,
            launcher="srun",
        )  # fmt: skip
    return None


def first_host(nodes: str) -> str:
    """The first host of SLURM's compressed list: "gpu[03-05,9],login" -> "gpu03"."""
    match = re.match(r"([^\[,\s]+)(?:\[(\d+)[^\]]*\]([^\[,\s]*))?(?=,|$)", nodes.strip())
    if match is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes!r}: not a list of hosts; set MASTER_ADDR to the first host's name")
    head, number, tail = match.groups()
    return head + (number or "") + (tail or "")


def _has_job(environment: Mapping[str, str]) -> bool:
    return "SLURM_JOB_ID" in environment or "SLURM_JOBID" in environment


def _number(environment: Mapping[str, str], *names: str) -> int:
    for name in names:
        if name in environment:
            if not environment[name].isdigit():
                raise UserError(f"{name}={environment[name]!r} in the environment: not a number; was it set by hand?")
            return int(environment[name])
    raise UserError(f"{names[0]} is missing from the environment; start all ranks with the same launcher")

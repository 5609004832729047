"""`--distributed-backend diloco`: workers that train by themselves and average their weights every few hundred steps.

The settings, and what the trainer asks of a backend; `worker` has the method, `exchange` the folder that workers share.
Needs no torch.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Lt

from danalab.errors import UserError
from danalab.train.config.backends import BACKENDS, DistributedBackend, RankLayout, Ranks
from danalab.train.config.fields import Count, Positive, Section, setting
from danalab.train.system.signals import ORDERLY

if TYPE_CHECKING:
    from danalab.train.config.run_spec import RunSpec
    from danalab.train.parallel.world import World

log = logging.getLogger(__name__)

RESTARTS = 3
"""Number of times that a worker is restarted."""


@dataclass(frozen=True, kw_only=True)
class DiLoCoSettings(Section):
    """Rounds and the outer step."""

    title: ClassVar[str] = "parallel"

    diloco_steps: Count | None = None
    """diloco (workers that exchange weights only now and then): steps of each worker between two outer steps; default
    500."""
    diloco_lr: Positive | None = None
    """diloco: learning rate of the outer step; default 0.7."""
    diloco_momentum: Annotated[float, Ge(0), Lt(1)] | None = None
    """diloco: Nesterov momentum of the outer step; default 0.9."""
    diloco_patience: Positive | None = setting(None, kind="execution")
    """diloco: how long workers wait for a missing one before they continue without it [s]; default 600."""


def _check(spec: RunSpec) -> None:
    if spec.plan.opt.startswith(("sf-", "snoo")):
        why = "keeps weights of its own, which DiLoCo's outer step would not update"
        raise UserError(f"--opt {spec.plan.opt}: {why}; take another one, or another --distributed-backend")
    if spec.config.weight_average():
        raise UserError("--average: DiLoCo's outer weights are an average already; leave it out")


def _join(layout: RankLayout, device_type: str) -> World:
    """A world of one process that takes its part of each batch."""
    from danalab.train.parallel.layout import Place, find_place
    from danalab.train.parallel.world import World, take_own_gpu

    place = find_place(os.environ) or Place(0, 1, 0, "", 0, "alone")
    if device_type == "cuda" and place.launcher != "alone":
        take_own_gpu(place)
    return World(local_rank=place.local_rank, dp_rank=place.rank, dp_size=place.size, worker=place.rank, layout=layout)


def _worker_spec(resolved: RunSpec, world: World) -> RunSpec:
    """The configuration of one worker; without a checkpoint, a later one starts from worker 0's, which owns the run."""
    from danalab.train.run.folder import RunFolder

    named = resolved.given.resume_from
    if named is not None and (resolved.execution.run_dir / "checkpoints").resolve() in named.resolve().parents:
        raise UserError(f"--resume-from {named}: DiLoCo's workers cannot go back together; take another --run-dir")
    if world.worker == 0:
        return resolved
    given = replace(resolved.given, wandb=False, trackio=False, tensorboard=False)
    if named is None and RunFolder(resolved.execution.run_dir).store.steps():
        given = replace(given, resume_from=resolved.execution.run_dir)
    return replace(resolved, given=given)


def _wait(
    processes: Ranks, received: Sequence[int], start: Callable[[int], subprocess.Popen[bytes]]
) -> list[int | None]:
    """Wait until all have ended; a worker that dies is restarted and joins the others at their step.

    A run ends as its first worker ends; other workers may be lost.
    """
    lives = [RESTARTS] * len(processes)
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 2, *ORDERLY) and lives[rank] and not received:
                lives[rank] -= 1
                log.warning("worker %d %s; it is restarted", rank, _fate(code))
                processes[rank], codes[rank] = start(rank), None
        if None not in codes:
            break
        time.sleep(0.05)
    if codes[0] not in ORDERLY:
        return codes
    for rank, code in enumerate(codes):
        if code != codes[0]:
            log.warning("worker %d %s; the run ended without it", rank, _fate(code))
    return [codes[0], *(None for _ in codes[1:])]


def _fate(code: int | None) -> str:
    """What became of a process, by its exit code."""
    return f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"failed (code {code})"


BACKENDS.add(
    "diloco",
    DistributedBackend(
        strategy=f"{__name__}.worker:DiLoCoWorker",
        shape=lambda layout, size: {"workers": size},
        whole_model=False,
        check=_check,
        join=_join,
        rank_spec=_worker_spec,
        wait=_wait,
        settings=DiLoCoSettings,
        # those of the paper, arXiv 2311.08105
        defaults={"diloco_steps": 500, "diloco_lr": 0.7, "diloco_momentum": 0.9, "diloco_patience": 600.0},
        metrics={
            "diloco/<name>": ("", "After a round of DiLoCo: loss, outer gradient, divergence of workers, bytes, times.")
        },
    ),
)

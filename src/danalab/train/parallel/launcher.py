"""`--nproc N`: N processes of one run on this machine, started and watched by the agent of torch.distributed.run.

A rank returns the exit code of the run; one that raises or dies ends the others (DiLoCo's workers start again from the
last checkpoint). Stop signals are passed on, and ranks have all the time they need for the last checkpoint.
Rank 0 has the terminal; the output of other ranks is kept in files, and the traceback of a failure is shown.
"""

import logging
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from danalab.errors import LostRankError, UserError
from danalab.train.config.train_config import TrainConfig
from danalab.train.system.signals import (
    INTERRUPTED,
    REQUEUE,
    STOP_SIGNALS,
    StopRequest,
    holding_signals,
    release_signals,
)

log = logging.getLogger(__name__)

RESTARTS = 3
"""Number of times that the workers of DiLoCo are restarted after one died."""
POLL_SECONDS = 0.05
GRACE_SECONDS = 1.0
"""Time that ranks have to end by themselves after one failed."""


Train = Callable[[TrainConfig, StopRequest], int]
"""What a rank does, in its own process; returns the exit code of the run."""


def launch(config: TrainConfig, ranks: int, device_type: str, stop: StopRequest, train: Train) -> int:
    """Run `config` on `ranks` processes; returns the exit code of the run, one of `signals.ORDERLY`.

    `stop` has earlier signals. UserError: bad input. LostRankError: a rank died.
    """
    import torch

    gpus = torch.cuda.device_count() if device_type == "cuda" else ranks
    if ranks > gpus:
        what = f"has {gpus} GPUs; give --nproc {gpus}" if gpus else "has no GPU; leave --device out"
        raise UserError(f"--nproc {ranks}: this machine {what} or give --device cpu")
    given = train, replace(config, nproc=None)
    resource_tracker.ensure_running()  # its start would release the signals that `_agent` holds
    with (
        tempfile.TemporaryDirectory(prefix="danalab-") as folder,
        ThreadPoolExecutor(1) as pool,
        _received_signals() as received,
    ):
        if stop:
            return stop.exit_code
        restarts = RESTARTS if config.usual_backend(ranks) == "diloco" else 0
        agent = pool.submit(_agent, given, Path(folder), ranks, restarts)
        _watch(received, agent)
        try:
            return agent.result()
        except LostRankError:
            if not received:
                raise
            return INTERRUPTED if received[-1] == signal.SIGINT else REQUEUE  # it died of the signal


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """The list of the stop signals that come within the block."""
    received: list[int] = []
    old = {}
    if threading.current_thread() is threading.main_thread():
        old = {
            number: signal.signal(number, lambda number, _: received.append(number))
            for number in STOP_SIGNALS
        }
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _watch(received: list[int], agent: Future[int]) -> None:
    """Wait for the agent; each signal goes to each process once, also to one that starts later.

    Once a rank failed, those that do not end by themselves are killed, for which the agent would wait half a minute:
    a stopped process does not hear its SIGTERM, and others are in a collective with a dead one.
    """
    sent: set[tuple[int | None, int]] = set()
    ranks: set[Any] = set()
    deadline = math.inf
    while wait([agent], POLL_SECONDS).not_done:
        living = multiprocessing.active_children()
        ranks.update(living)
        for process in living if received else ():
            for place, number in enumerate(received):
                if (process.pid, place) not in sent and process.pid is not None:
                    sent.add((process.pid, place))
                    os.kill(process.pid, number)
        if any(process.exitcode for process in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for process in living:
                process.kill()
            ranks, deadline = set(), math.inf


def _agent(given: tuple[Train, TrainConfig], folder: Path, ranks: int, restarts: int) -> int:
    """Run torch's agent with all ranks; returns their exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        quiet = logging.getLogger(name)  # failures are raised below, in a line
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
    launched = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"danalab-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=restarts,
        monitor_interval=POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=dict.fromkeys(range(1, ranks), Std.ALL)),
    )
    with holding_signals():
        try:
            return max(elastic_launch(launched, _rank)(*given).values())
        except ChildFailedError as error:
            failures: dict[int, Any] = error.failures
    rank, failure = min(
        failures.items(), key=lambda item: (not _said(item[1]).startswith("UserError"), item[0])
    )
    raise _explained(rank, failure)


def _rank(train: Train, config: TrainConfig) -> int:
    """Train as a rank of the group that the environment describes; returns the exit code."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    with StopRequest() as stop:
        os.setsid()  # Ctrl-C reaches ranks through the launcher, once
        release_signals()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the launcher writes --json
        try:
            return train(config, stop)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BaseException as error:
            get_error_handler().record_exception(error)
            sys.stderr.flush()
            os._exit(1)  # threads may wait for dead ranks


def _said(failure: Any) -> str:
    """The type and the text of a rank's exception; empty where it died without one."""
    return failure.message["message"] if isinstance(failure.message, dict) else ""


def _explained(rank: int, failure: Any) -> Exception:
    """The error of the run by that of a rank."""
    kind, _, text = _said(failure).partition(": ")
    if kind in ("UserError", "FirstRankError", "MissingExtra"):
        return UserError(text)
    if kind == "LostRankError":
        return LostRankError(text)
    if failure.exitcode < 0:
        hint = " (is memory short, or was it stopped?)" if failure.exitcode == -signal.SIGKILL else ""
        reason = f"was killed by {failure.signal_name()}{hint}"
    else:
        reason = f"failed with exit code {failure.exitcode}"
        if kind:
            reason += f": {_said(failure)}"
            lines = failure.message["extraInfo"]["py_callstack"].splitlines()
            print("\n".join(f"[rank {rank}] {line}" for line in lines), file=sys.stderr)
    return LostRankError(f"rank {rank} {reason}; start the job again to resume from the last checkpoint")

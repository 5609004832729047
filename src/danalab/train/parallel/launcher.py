"""`--nproc N`: starts N processes of one run on this machine, with the environment variables of torchrun.

Unlike torchrun's agent it forwards SIGTERM, SIGUSR1 and SIGINT, waits for the last checkpoint, and returns the run's
exit code. Rank 0 has the terminal; the output of other ranks is kept, and shown where one of them fails.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from danalab.errors import FirstRankError, LostRankError, UserError
from danalab.files import write_json
from danalab.hardware import available_cores, chosen_threads
from danalab.train.config.backends import BACKENDS
from danalab.train.config.train_config import TrainConfig
from danalab.train.system.signals import INTERRUPTED, ORDERLY, REQUEUE, STOP_SIGNALS, StopRequest, holding_signals

log = logging.getLogger(__name__)

LOST_CODE = 4
"""Exit code of a rank that lost another rank."""
GRACE_SECONDS = 15.0
"""Time that other ranks have to end by themselves after a rank failed."""


def launch(config: TrainConfig, ranks: int, device_type: str, stop: StopRequest) -> int:
    """Run `config` on `ranks` processes; returns the exit code of the run, one of `ORDERLY`.

    `stop` has earlier signals. UserError: bad input (`FirstRankError`: rank 0 printed it). LostRankError: a rank died.
    """
    import torch
    from torch.distributed import TCPStore

    gpus = torch.cuda.device_count() if device_type == "cuda" else ranks
    if ranks > gpus:
        what = f"has {gpus} GPUs; give --nproc {gpus}" if gpus else "has no GPU; leave --device out"
        raise UserError(f"--nproc {ranks}: this machine {what} or give --device cpu")
    # The store is in this process, so that it outlives any rank.
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=30))
    with tempfile.TemporaryDirectory(prefix="danalab-") as folder:
        file = Path(folder) / "config.json"
        kind = f"{type(config).__module__}:{type(config).__qualname__}"
        write_json(file, {"kind": kind, "settings": {**config.as_dict(), "nproc": None}})
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _forwarding_signals(processes) as (received, early):
                if stop:
                    return stop.exit_code
                processes += [_start(rank, ranks, store.port, file) for rank in range(ranks)]
                for number in early:
                    _send(processes, number)
                wait = BACKENDS.get(config.usual_backend(ranks)).wait or _wait
                codes = wait(processes, received, lambda rank: _start(rank, ranks, store.port, file))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        return _verdict(codes, received, Path(folder))


def _start(rank: int, ranks: int, port: int, config: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    environment["OMP_NUM_THREADS"] = chosen_threads() or str(max(1, available_cores() // ranks))
    output: IO[bytes] | int = subprocess.DEVNULL
    with contextlib.ExitStack() as files:
        if rank > 0:
            output = files.enter_context(open(_output(config.parent, rank), "wb"))
        with holding_signals():  # `rank_main` releases them
            return subprocess.Popen(
                _command(config),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output if rank > 0 else sys.__stderr__,
                stderr=output if rank > 0 else None,
                start_new_session=True,  # Ctrl-C reaches ranks through this process, once
            )


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "danalab.train.parallel.rank_main", str(config), str(os.getpid())]


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.txt"


@contextlib.contextmanager
def _forwarding_signals(processes: list[subprocess.Popen[bytes]]) -> Iterator[tuple[list[int], list[int]]]:
    """Forward signals to all processes within the block; gives those received, and those that met no process."""
    received: list[int] = []
    early: list[int] = []

    def receive(number: int, _: Any) -> None:
        received.append(number)
        if processes:
            _send(processes, number)
        else:
            early.append(number)

    old = {}
    if threading.current_thread() is threading.main_thread():
        old = {number: signal.signal(number, receive) for number in STOP_SIGNALS}
    try:
        yield received, early
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _send(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _wait(processes: list[subprocess.Popen[bytes]], *_: object) -> list[int | None]:
    """Exit codes when all have ended, or some time after one failed; None for those still running."""
    deadline = None
    while None in (codes := [process.poll() for process in processes]):
        if deadline is None and any(code not in (None, *ORDERLY) for code in codes):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return codes


def _verdict(exit_codes: list[int | None], received: list[int], folder: Path) -> int:
    codes = {rank: code for rank, code in enumerate(exit_codes) if code is not None}
    stops = [-number for number in received]
    if received and all(code in (*ORDERLY, *stops) for code in codes.values()):
        # Ranks that had ended their run died of the signal.
        ended = [code for code in codes.values() if code in ORDERLY]
        return max(ended) if ended else (INTERRUPTED if received[-1] == signal.SIGINT else REQUEUE)
    for rank, code in codes.items():
        if code not in (*ORDERLY, LOST_CODE):
            _raise(rank, code, folder)
    if LOST_CODE in codes.values():
        ranks = ", ".join(str(rank) for rank, code in codes.items() if code == LOST_CODE)
        raise LostRankError(f"ranks {ranks} lost the others; start the job again to resume from the last checkpoint")
    return max(codes.values())


def _raise(rank: int, code: int, folder: Path) -> None:
    said = _output(folder, rank).read_text(errors="replace").strip().splitlines() if rank > 0 else []
    if code == 2:
        if rank == 0:
            raise FirstRankError("rank 0 printed the reason")
        raise UserError(f"rank {rank}: {said[-1].removeprefix('danalab: error: ') if said else 'bad input'}")
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (is memory short?)" if -code == signal.SIGKILL else ""
        reason = f"was killed by {name}{hint}"
    else:
        reason = f"failed with exit code {code}" + (f": {said[-1]}" if said else "")
        if len(said) > 1:
            print("\n".join(f"[rank {rank}] {line}" for line in said[-30:]), file=sys.stderr)
    raise LostRankError(f"rank {rank} {reason}; start the job again to resume from the last checkpoint")

"""Ranks of a gloo group as forked processes: a few tenths of a second a launch, since nothing is imported again."""

from __future__ import annotations

import io
import os
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor  # imported before the fork, so that no rank has to
import torch.multiprocessing as mp


class RankFailed(Exception):
    """A rank raised, died or hung; the message has its traceback."""


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, seconds: float = 240.0) -> list[Any]:
    """Run `fn(rank, world_size, *args)` on every rank of a gloo group; what each returned, in order of ranks.

    `fn` may be a closure. One thread a rank. A rank that raises ends the others.

    Args:
        seconds: for all ranks together; collectives time out a little earlier.
    Raises:
        RankFailed: with the traceback of the first rank that failed.
    """
    context = mp.get_context("fork")
    with TemporaryDirectory() as folder:
        pipes: list[Connection] = []
        ranks = []
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(fn, rank, world_size, args, Path(folder), theirs, seconds)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of its threads; no rank calls it
                process.start()
            theirs.close()
            pipes.append(ours)
            ranks.append(process)
        try:
            return _collect(pipes, seconds)
        finally:
            for process in ranks:
                process.join(timeout=5.0)
                if process.is_alive():
                    process.kill()
                    process.join()
            for pipe in pipes:
                pipe.close()


def _collect(pipes: list[Connection], seconds: float) -> list[Any]:
    deadline = time.monotonic() + seconds
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(pipes)) if rank not in results]
            raise RankFailed(f"ranks {silent} said nothing for {seconds:g} s")
        for pipe in ready:
            rank = pipes.index(pipe)  # pyright: ignore[reportArgumentType]
            try:
                ok, payload = pipes[rank].recv()
            except EOFError:
                raise RankFailed(f"rank {rank} died without a word") from None
            if not ok:
                raise RankFailed(f"rank {rank}:\n{payload}")
            results[rank] = torch.load(io.BytesIO(payload), weights_only=False)
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    fn: Callable[..., Any],
    rank: int,
    ranks: int,
    args: tuple[Any, ...],
    folder: Path,
    pipe: Connection,
    seconds: float,
) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo"
        )
        store = dist.FileStore(str(folder / "store"), ranks)
        limit = timedelta(seconds=max(1.0, seconds - 5.0))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        buffer = io.BytesIO()
        torch.save(fn(rank, ranks, *args), buffer)
        pipe.send((True, buffer.getvalue()))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)  # no atexit handlers of the test runner

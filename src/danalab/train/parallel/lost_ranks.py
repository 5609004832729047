"""Errors of ranks that lost another rank: which rank died or failed, and why."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from danalab.errors import LostRankError
from danalab.train.parallel.world import World

ROLL_CALL_SECONDS = 4.0
"""How long ranks that lost another rank wait for answers from the others."""


@contextlib.contextmanager
def report_lost_ranks(world: World) -> Iterator[None]:
    """Name lost ranks where this rank fails because of them; leave a message for the others where it fails first.

    Raises:
        LostRankError: in place of the error of a broken connection.
    """
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
    while error is not None:
        if isinstance(error, torch.distributed.DistError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__
    return False


_SIGNS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe", "NCCL")


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
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        words.append(f"ranks lost each other: {first[:200]}")
    text = "; ".join(words) + "; start the job again to resume from the last checkpoint"
    return LostRankError(text, quiet=world.rank != min(here | {world.rank}), in_rank=True)


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()

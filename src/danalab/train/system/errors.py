"""Failures that a person can do something about, said as such: of memory, of the compiler, of another rank."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from danalab.errors import LostRankError, UserError
from danalab.train.parallel.world import World

ROLL_CALL_SECONDS = 4.0
"""How long ranks that lost another wait for each other's word."""


@contextlib.contextmanager
def explained(micro_batch: int, seq_len: int) -> Iterator[None]:
    """Turn running out of memory and failing to compile into advice.

    Every step is as large as the first, so the first one finds out whether memory suffices.

    Raises:
        UserError: in their place.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(_memory(micro_batch, seq_len, str(error))) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # what the CPU allocator says
            raise UserError(_memory(micro_batch, seq_len, str(error))) from error
        if _is_compiler_failure(error):
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"--compile failed: {first}; leave it out or give --no-compile") from error
        raise


def _memory(micro_batch: int, seq_len: int, message: str) -> str:
    return (
        f"out of memory with micro-batches of {micro_batch} x {seq_len} tokens: lower --batch-size (and raise "
        f"--acc-steps as much, which changes no result), or try --activation-checkpointing full, or share the model "
        f"among more ranks with --distributed-backend fsdp ({message.splitlines()[0][:120]})"
    )


def _is_compiler_failure(error: RuntimeError) -> bool:
    return any(kind.__module__.startswith(("torch._dynamo.exc", "torch._inductor.exc")) for kind in type(error).__mro__)


# ---- other ranks ----


@contextlib.contextmanager
def explained_loss(world: World) -> Iterator[None]:
    """Name the ranks that are gone, where this rank fails because of them; tell the others where it fails by itself.

    Raises:
        LostRankError: in place of a broken connection.
    """
    try:
        yield
    except Exception as error:
        if world.size == 1:
            raise
        if not _is_loss(error):
            with contextlib.suppress(Exception):  # the reason itself is on its way up
                _store().set(f"danalab/failed/{world.rank}", f"{type(error).__name__}: {error}"[:500])
            raise
        raise _lost(world, error) from error


def _is_loss(error: BaseException | None) -> bool:
    """Whether a collective failed; also behind a UserError that explains what followed."""
    while error is not None:
        if isinstance(error, torch.distributed.DistError):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__
    return False


_SIGNS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe", "NCCL")


def _lost(world: World, error: Exception) -> LostRankError:
    """Ask who is still there, by the store that all ranks met at."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now; a word about the reason first
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
    except RuntimeError:  # the store lives in rank 0, unless a launcher keeps it
        here.discard(0)
    gone = sorted(set(range(world.size)) - here - set(failed))
    words = [f"rank {rank} failed: {text}" for rank, text in sorted(failed.items())]
    if gone:
        words.append(f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))} died or stopped answering")
    if not words:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        words.append(f"ranks lost each other: {first[:200]}")
    text = "; ".join(words) + "; started again, the run goes on from its last checkpoint"
    return LostRankError(text, quiet=world.rank != min(here | {world.rank}), in_rank=True)


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()

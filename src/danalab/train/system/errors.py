"""Errors of memory and of the compiler, as one line with advice."""

import contextlib
from collections.abc import Iterator

import torch

from danalab.errors import UserError


@contextlib.contextmanager
def explain_errors(micro_batch: int, seq_len: int) -> Iterator[None]:
    """Turn running out of memory and a failed compilation into one line of advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UserError(_memory(micro_batch, seq_len, str(error))) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # message of the CPU allocator
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

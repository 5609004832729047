"""What a test changes in its process is as before for the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_process() -> Iterator[None]:
    """Environment, threads and determinism, which commands and libraries set for their process, are put back.

    Threads: a forked child of a process with a team of them hangs.

    Raises:
        AssertionError: another working folder, default dtype or gradient mode, which a test has to put back itself.
    """
    environment, before = dict(os.environ), (os.getcwd(), torch.get_default_dtype(), torch.is_grad_enabled())
    yield
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    for name in {name for name, _ in environment.items() ^ os.environ.items()}:
        os.environ.pop(name, None)
        if name in environment:
            os.environ[name] = environment[name]
    after = os.getcwd(), torch.get_default_dtype(), torch.is_grad_enabled()
    os.chdir(before[0])
    torch.set_default_dtype(before[1])
    torch.set_grad_enabled(before[2])
    assert after == before

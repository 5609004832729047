"""Processes by multiprocessing that run no script of the caller's, and end with the process that started them.

Whoever starts processes does so `with hidden_main():`, and each calls `end_with_starter` at its beginning.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread
from types import ModuleType


@contextmanager
def hidden_main() -> Iterator[None]:
    """Processes that are started here do not run the script of this one again, which may lack a guard."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def end_with_starter() -> None:
    """Send this process SIGTERM when the one that started it has ended, also by a kill or in the middle of a call."""
    starter = parent_process()
    assert starter is not None

    def wait() -> None:
        starter.join()
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=wait, daemon=True).start()

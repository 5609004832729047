"""Processes for runs and calls: one that raises, hangs or dies costs its own call, and nothing else.

    ProcessPool -> Child (a process each) -> calls in turn, or a run that ends it

A server forks them (multiprocessing's fork server) that has imported the trainer once, and used neither threads nor a
GPU. A child whose starter has ended, also by a kill, gets SIGTERM: a run saves its checkpoint and stops.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from danalab.processes import end_with_starter, hidden_main
from danalab.sweep.executors import POLL_SECONDS, PolledExecutor, PolledFuture

WARM = ("danalab.cli.training", "danalab.train.job", "torch._dynamo")  # the last by torch's first optimizer
STARTING = 120.0  # further time of the first call of a process, for its imports and data [s]


class ProcessDied(Exception):
    """A process ended in the middle of a call; its argument is the exit code."""

    @property
    def code(self) -> int:
        return self.args[0]


@cache
def _context() -> Any:
    context = get_context("spawn" if sys.platform == "darwin" else "forkserver")  # there a fork must exec
    context.set_forkserver_preload([*WARM])
    return context


class Child:
    """A process of its own session, with its output in `log` or nowhere, and `threads` threads of torch."""

    def __init__(self, log: Path | None = None, environment: Mapping[str, str] = {}, threads: int | None = 1):
        self.pipe, theirs = _context().Pipe()
        own = {**os.environ, **environment}  # the server has the one of its start
        self._process = _context().Process(target=_serve, args=(theirs, log, own, threads))
        with hidden_main():
            self._process.start()
        theirs.close()

    def call(self, work: Callable[..., Any], *given: Any) -> None:
        """Begin a call; everything in it is pickled."""
        with suppress(ConnectionError):  # `result` finds that the process is gone
            self.pipe.send((work, given))

    def result(self, limit: float | None = None) -> Any:
        """Wait for the result. Raises the error of the call; ProcessDied; TimeoutError after `limit` seconds."""
        try:
            if not self.pipe.poll(limit):
                raise TimeoutError
            value, error = self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise ProcessDied(self._process.exitcode) from None
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        """Send SIGTERM; `close` waits for the end."""
        self._process.terminate()

    def close(self, *, kill: bool = False) -> None:
        """Wait for the end of a call, if one is under way, and of the process."""
        if kill:
            self._process.kill()
        self.pipe.close()
        self._process.join()


@dataclass(frozen=True)
class TimedCall:
    """A call in a process of its own; where it is called, that process is a new one."""

    work: Callable[..., Any]
    given: tuple[Any, ...] = ()
    limit: float | None = None
    """Time after which the process is killed [s]; the first call of a process has `STARTING` more."""

    def __call__(self) -> Any:
        """As `Child.result`."""
        child = Child()
        try:
            child.call(self.work, *self.given)
            return child.result(self.limit and self.limit + STARTING)
        finally:
            child.close(kill=True)


class ProcessPool(PolledExecutor):
    """Calls in `parallel` processes side by side; a future has what `Child.result` returns or raises."""

    poll_seconds = 0.0  # `poll` waits itself

    def __init__(self, parallel: int):
        super().__init__()
        self._parallel = parallel
        self.running: dict[Child, tuple[Any, PolledFuture, float]] = {}
        """Child -> what it does, its future, its deadline by the clock."""
        self._idle: list[Child] = []

    def poll(self) -> None:
        while self.units and len(self.running) < self._parallel:
            unit, future = self.units.pop(0)
            timed = unit if isinstance(unit, TimedCall) else TimedCall(unit)
            child, starting = (self._idle.pop(), 0.0) if self._idle else (Child(), STARTING)
            child.call(timed.work, *timed.given)
            self.running[child] = timed, future, time.monotonic() + starting + (timed.limit or float("inf"))
        self._take_results()

    def _take_results(self) -> None:
        ready = wait([child.pipe for child in self.running], timeout=POLL_SECONDS)
        for child, (unit, future, deadline) in [*self.running.items()]:
            if child.pipe not in ready and time.monotonic() < deadline:
                continue
            del self.running[child]
            try:
                value, error = child.result(0), None
            except Exception as raised:
                value, error = None, raised
            if isinstance(error, (ProcessDied, TimeoutError)):
                child.close(kill=True)
            else:
                self._idle.append(child)
            self._end(unit, future, value, error)

    def _end(self, unit: Any, future: PolledFuture, value: Any, error: Exception | None) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Send SIGTERM to the processes of what is under way, and wait for their ends."""
        for child in self.running:
            child.stop()
        for child in [*self.running, *self._idle]:
            child.close()
        self.running.clear()
        self._idle.clear()


def become(command: Sequence[str]) -> None:
    """Become `python -m MODULE ...` without starting Python again."""
    sys.argv = [*command[2:]]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)


def _serve(pipe: Connection, log: Path | None, environment: Mapping[str, str], threads: int | None) -> None:
    import torch

    os.setsid()  # Ctrl-C on a terminal reaches the pool alone, which then stops the runs once
    end_with_starter()
    output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
    while True:
        try:
            work, given = pipe.recv()
        except EOFError:
            return
        try:
            answer = work(*given), None
        except Exception as error:
            answer = None, error
        pipe.send(answer)

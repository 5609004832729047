"""Tokenising on all cores: threads of this process for a small corpus, child processes for a large one.

The libraries release the GIL, so threads scale to a few cores and start at once; with many cores the remaining Python
code is the bottleneck. Processes take a third of a second to start and receive documents over pipes. They are new
interpreters (`python -m` this module): a fork would inherit the locks of torch's and the tokenizer library's threads,
and `multiprocessing`'s spawn would run a caller's unguarded script again. A child ends when its pipe is closed, also
if this process is killed.
"""

import contextlib
import fcntl
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

import danalab
from danalab.data.formats.shards import token_dtype
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.errors import UserError

_AHEAD = 2  # chunks queued in a child beside the current one, so that it never waits for its parent
_PIPE_BYTES = 1 << 20  # the kernel's default of 64 KiB would wake both ends a dozen times per chunk


@dataclass(frozen=True)
class Encoded:
    """The documents of one split in one chunk, each followed by the end-of-text id."""

    ids: np.ndarray
    ends: np.ndarray
    """End of each document in `ids`, int64 [documents]."""
    text_bytes: np.ndarray
    """UTF-8 bytes of each document's text, int64 [documents]."""

    def first(self, documents: int) -> "Encoded":
        """The first `documents` documents."""
        tokens = int(self.ends[documents - 1]) if documents else 0
        return Encoded(self.ids[:tokens], self.ends[:documents], self.text_bytes[:documents])


Chunk = Sequence[tuple[str, str]]
"""Documents: split and text."""
Result = dict[str, Encoded]
Waiting = queue.SimpleQueue["tuple[Chunk, Future[Result]] | None"]
T = TypeVar("T")


def encode_chunk(tokenizer: Tokenizer, chunk: Chunk) -> Result:
    """Tokenise documents; each split keeps their order."""
    dtype = token_dtype(tokenizer.vocab_size)
    arrays = tokenizer.encode_array([text for _, text in chunk])
    result: Result = {}
    for split in dict.fromkeys(split for split, _ in chunk):
        mine = [number for number, (label, _) in enumerate(chunk) if label == split]
        ends = np.cumsum([len(arrays[number]) + 1 for number in mine], dtype=np.int64)
        ids = np.empty(int(ends[-1]), dtype)
        begin = 0
        for number, end in zip(mine, ends.tolist(), strict=True):
            ids[begin : end - 1] = arrays[number]
            begin = end
        ids[ends - 1] = tokenizer.eos_id
        sizes = [len(text) if text.isascii() else len(text.encode()) for text in (chunk[n][1] for n in mine)]
        result[split] = Encoded(ids, ends, np.array(sizes, np.int64))
    return result


def encode_in_order(
    tokenizer: Tokenizer, folder: Path, chunks: Iterable[tuple[T, Chunk]], workers: int, *, processes: bool
) -> Generator[tuple[T, Result], None, None]:
    """Encode chunks in order, each with its mark; one worker is this thread, processes load the tokenizer."""
    if workers == 1:
        for mark, chunk in chunks:
            yield mark, encode_chunk(tokenizer, chunk)
        return
    with _processes(folder, workers) if processes else _threads(tokenizer, workers) as submit:
        pending: deque[tuple[T, Future[Result]]] = deque()
        for mark, chunk in chunks:
            pending.append((mark, submit(chunk)))
            while pending and (pending[0][1].done() or len(pending) > (_AHEAD + 2) * workers):
                first, result = pending.popleft()
                yield first, result.result()
        for first, result in pending:
            yield first, result.result()


@contextlib.contextmanager
def _threads(tokenizer: Tokenizer, workers: int) -> Iterator[Callable[[Chunk], Future[Result]]]:
    pool = ThreadPoolExecutor(workers)
    try:
        yield lambda chunk: pool.submit(encode_chunk, tokenizer, chunk)
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _processes(folder: Path, workers: int) -> Iterator[Callable[[Chunk], Future[Result]]]:
    home = str(Path(danalab.__file__).parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread per process.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "danalab.data.preparation.workers", str(folder)]
    waiting: Waiting = queue.SimpleQueue()
    children = [_WorkerProcess(command, environment, waiting) for _ in range(workers)]

    def submit(chunk: Chunk) -> Future[Result]:
        result: Future[Result] = Future()
        waiting.put((chunk, result))
        return result

    try:
        yield submit
    finally:
        for _ in children:
            waiting.put(None)
        for child in children:
            child.close()


class _WorkerProcess:
    """One process, a thread that writes chunks to it, and a thread that reads its results."""

    def __init__(self, command: list[str], environment: dict[str, str], waiting: Waiting):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        for pipe in (self._to, self._from):
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # above this user's limit
                    fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._waiting = waiting
        self._given: queue.SimpleQueue[Future[Result] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(1 + _AHEAD)
        self._closing = False
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while True:
            self._room.acquire()
            item = None if self._closing else self._waiting.get()
            if item is None:
                self._given.put(None)
                return
            chunk, result = item
            self._given.put(result)
            try:
                pickle.dump(chunk, self._to, protocol=5)
                self._to.flush()
            except (OSError, ValueError):
                continue  # the reading thread reports the reason

    def _read(self) -> None:
        while (result := self._given.get()) is not None:
            try:
                answer = pickle.load(self._from)
            except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
                broken = UserError(
                    f"a tokenising process died (exit code {self._process.wait()}; -9: out of memory?); "
                    "run the command again to resume, perhaps with fewer --workers"
                )
                broken.__cause__ = error
                answer = broken
            if isinstance(answer, Exception):
                result.set_exception(answer)
            else:
                result.set_result(answer)
            self._room.release()

    def close(self) -> None:
        self._closing = True
        self._process.terminate()
        self._process.wait()
        self._room.release()
        for thread in self._threads:
            thread.join()
        for pipe in (self._to, self._from):
            with contextlib.suppress(BrokenPipeError):  # a partial chunk in the buffer
                pipe.close()


def _serve(folder: str) -> None:
    """Main loop of a child: read chunks ahead and answer each with its result, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipes
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep prints of libraries out of the answers
    chunks: queue.Queue[Chunk | None] = queue.Queue(_AHEAD)

    def read() -> None:
        while True:
            try:
                chunks.put(pickle.load(sys.stdin.buffer))
            except (EOFError, pickle.UnpicklingError):
                chunks.put(None)
                return

    threading.Thread(target=read, daemon=True).start()
    tokenizer = load_tokenizer(Path(folder))
    while (chunk := chunks.get()) is not None:
        try:
            answer: Result | Exception = encode_chunk(tokenizer, chunk)
        except UserError as error:
            answer = UserError(str(error))
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


if __name__ == "__main__":
    # Imported under its own name: the parent must find the pickled classes.
    from danalab.data.preparation.workers import _serve as serve

    serve(sys.argv[1])

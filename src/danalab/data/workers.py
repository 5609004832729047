"""Tokenising on all cores: child processes that are fed documents over pipes.

They are fresh interpreters (`python -m danalab.data.workers`), not forks of this process and not `multiprocessing`'s
spawned ones: a fork would inherit the locks of torch's and the tokenizer library's threads, a spawn would run a
caller's unguarded script again. A child ends when its pipe does, also when this process is killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import danalab
from danalab.data.shards import token_dtype
from danalab.data.split import Labelled
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.errors import UserError


@dataclass(frozen=True)
class Encoded:
    """The documents of one split in one chunk, each followed by the end-of-text id."""

    ids: np.ndarray
    documents: int
    text_bytes: int


Chunk = Sequence[Labelled]
Result = dict[str, Encoded]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_chunk(tokenizer: Tokenizer, chunk: Chunk) -> Result:
    """Tokenise labelled documents; in each split they keep their order."""
    dtype = token_dtype(tokenizer.vocab_size)
    end = np.array([tokenizer.eos_id], dtype)
    result: Result = {}
    arrays = tokenizer.encode_array([text for _, text in chunk])
    for split in dict.fromkeys(split for split, _ in chunk):
        mine = [number for number, (label, _) in enumerate(chunk) if label == split]
        pieces = [piece for number in mine for piece in (arrays[number].astype(dtype), end)]
        text_bytes = sum(len(chunk[number][1].encode()) for number in mine)
        result[split] = Encoded(np.concatenate(pieces), len(mine), text_bytes)
    return result


def encode_in_order(tokenizer: Tokenizer, folder: Path, chunks: Iterable[Chunk], workers: int) -> Iterator[Result]:
    """Encode each chunk; results come in the order of the chunks.

    Args:
        tokenizer: does the work when there is one worker.
        folder: where it is saved, for the others.
        chunks: read as results are taken, a few ahead.
        workers: child processes; with 1 the work is done here.
    """
    if workers == 1:
        for chunk in chunks:
            yield encode_chunk(tokenizer, chunk)
        return
    crew = _Crew(folder, workers)
    try:
        pending: deque[Future[Result]] = deque()
        for chunk in chunks:
            pending.append(crew.submit(chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        crew.close()


class _Crew:
    """One thread for each child; it writes a chunk, then waits for the result."""

    def __init__(self, folder: Path, workers: int):
        home = str(Path(danalab.__file__).parent.parent)
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        # One thread each: the processes are the parallelism.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "danalab.data.workers", str(folder)]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for _ in range(workers)
        ]
        self._idle = list(self._children)
        self._mine = threading.local()
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, chunk: Chunk) -> Future[Result]:
        return self._threads.submit(self._encode, chunk)

    def _encode(self, chunk: Chunk) -> Result:
        if not hasattr(self._mine, "child"):
            self._mine.child = self._idle.pop()
        child: subprocess.Popen[bytes] = self._mine.child
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            pickle.dump(chunk, child.stdin, protocol=5)
            child.stdin.flush()
            answer = pickle.load(child.stdout)
        except (OSError, EOFError) as error:
            raise UserError(
                f"a tokenising process ended early (exit code {child.wait()}; -9: out of memory?); "
                "run it again to go on, perhaps with fewer --workers"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait()
        self._threads.shutdown(wait=True)
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue  # half a chunk was left in the buffer


def _serve(folder: str) -> None:
    """A child's life: read a chunk, answer with the result, until the pipe ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the pipes
    tokenizer = load_tokenizer(folder)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the answers
    while True:
        try:
            chunk = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Result | Exception = encode_chunk(tokenizer, chunk)
        except UserError as error:
            answer = UserError(str(error))
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


if __name__ == "__main__":
    # Imported under its own name, so that what it pickles is found again by the parent.
    from danalab.data.workers import _serve as serve

    serve(sys.argv[1])

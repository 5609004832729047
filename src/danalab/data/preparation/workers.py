"""Tokenising on all cores: threads of this process for a small corpus, child processes for a large one.

The libraries release the GIL, so threads scale to a few cores and start at once; with many cores the remaining Python
code is the bottleneck. Processes take a third of a second to start and receive documents over pipes. They are new
interpreters: a fork would inherit the locks of torch's and the tokenizer library's threads.
"""

import os
import signal
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np

from danalab.data.formats.shards import token_dtype
from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.errors import UserError
from danalab.processes import end_with_starter, hidden_main

_AHEAD = 4  # chunks given to the workers beside those that are done, for each worker


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
    """Encode chunks in order, each with its mark; one worker is this thread, processes load the tokenizer.

    UserError: a process died.
    """
    if workers == 1:
        for mark, chunk in chunks:
            yield mark, encode_chunk(tokenizer, chunk)
        return
    pool: Executor = ThreadPoolExecutor(workers)
    encode = partial(encode_chunk, tokenizer)
    if processes:
        pool, encode = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (folder,)), _encode_here
    pending: deque[tuple[T, Future[Result]]] = deque()
    try:
        for mark, chunk in chunks:
            with hidden_main():  # the pool starts processes as it needs them
                pending.append((mark, pool.submit(encode, chunk)))
            while pending and (pending[0][1].done() or len(pending) > _AHEAD * workers):
                first, result = pending.popleft()
                yield first, result.result()
        for first, result in pending:
            yield first, result.result()
    except BrokenExecutor as error:
        raise UserError(
            "a tokenising process died (out of memory?); run the command again to resume, perhaps with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_own: dict[str, Tokenizer] = {}


def _begin(folder: Path) -> None:
    """Prepare a child process."""
    end_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.dup2(2, 1)  # what libraries print is no result
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per process
    _own["tokenizer"] = load_tokenizer(folder)


def _encode_here(chunk: Chunk) -> Result:
    return encode_chunk(_own["tokenizer"], chunk)

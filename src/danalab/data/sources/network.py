"""Lost connections to the hub: reading resumes where it broke, and errors become one line."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from danalab.errors import UserError, first_line

_TRIES, _PAUSE_SECONDS = 6, 2.0
_HTTP_CLIENTS = {"httpx", "httpx2", "httpcore", "requests"}
_log = logging.getLogger(__name__)


def read_persistently(
    read: Callable[[int], Iterator[str]], name: str, skip: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Documents of `read(skip)`; after a lost connection it reads again from the document where it broke.

    Args:
        read: opens the file and reads it after the given number of documents.
        name: the file's name in messages.
        skip: documents to skip.
        sleep: waits between attempts [s].
    """
    done, failures = skip, 0
    while True:
        try:
            for text in read(done):
                done, failures = done + 1, 0
                yield text
            return
        except Exception as error:
            if not _is_network_error(error):
                raise
            failures += 1
            if failures == _TRIES:
                raise UserError(
                    f"{name}: {first_line(error)} ({_TRIES} attempts, after document {done}); run it again to resume"
                ) from error
            _log.info("%s: %s after document %d; trying again", name, first_line(error), done)
            sleep(_PAUSE_SECONDS * 2 ** (failures - 1))


@contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Convert the hub library's errors to one line that says what to do; `name` is the repository."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        kind = type(error).__name__
        if kind == "GatedRepoError":
            reason = "gated: accept its terms on the hub's page, then run: hf auth login"
        elif kind in {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
            reason = "not on the hub (or private: hf auth login)"
        elif isinstance(error, FileNotFoundError):
            reason = f"no such file or folder in it: {first_line(error)}"
        elif _is_network_error(error):
            reason = f"the hub cannot be reached ({kind}); give a local copy with --input FOLDER, or try again later"
        else:
            raise
        raise UserError(f"{name}: {reason}") from error


def _is_network_error(error: BaseException) -> bool:
    """Whether a connection failed; the hub library's HTTP client depends on its version."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _HTTP_CLIENTS

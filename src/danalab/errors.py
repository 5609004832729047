"""Errors for people: one clear line that says what was wrong, where, and what to do."""

import difflib
import errno
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class UserError(ValueError):
    """Bad input from a person: a flag, file, shape, token id, configuration, checkpoint or prompt.

    The message is one line that names the thing, the place and the way out. The command line prints it and ends with
    exit code 2; libraries see an ordinary `ValueError`.
    """


_EXTRAS = {
    "lab": "annotated_types cachetools jinja2 markupsafe matplotlib numpy pydantic pydantic_core rich safetensors"
    " tiktoken tokenizers typing_extensions yaml",
    "baselines": "pytorch_optimizer",
    "data": "datasets fsspec huggingface_hub pyarrow",
    "hf": "lm_eval transformers",
    "ladder": "scipy",
    "serve": "llguidance starlette uvicorn",
    "theory": "jax optax",
    "track": "tensorboard wandb",
}
EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules.split()}
"""What is imported -> the extra of pyproject.toml that installs it. torch is all that is always there."""


class MissingExtra(UserError):
    """An optional dependency is needed and not installed."""

    def __init__(self, module: str, purpose: str, extra: str | None = None):
        extra = extra or EXTRA_OF[module]
        what = "more than the optimizers" if extra == "lab" else module.replace("_", "-")
        super().__init__(
            f"{purpose} needs {what}: pip install 'danalab[{extra}]', in a clone pip install -e '.[{extra}]'"
        )


def import_extra(module: str, purpose: str) -> Any:
    """A module of an optional dependency; MissingExtra where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(next(part for part in module.split(".") if part in EXTRA_OF), purpose) from error


class LostRankError(RuntimeError):
    """A process of a run of several died or stopped answering; the message names it. Exit code 1.

    `quiet`: another process says it already. `in_rank`: one of the run; its threads may wait for ranks that are gone.
    """

    def __init__(self, message: str, *, quiet: bool = False, in_rank: bool = False):
        super().__init__(message)
        self.quiet, self.in_rank = quiet, in_rank


class FirstRankError(UserError):
    """What rank 0 found wrong, raised on another rank, which has nothing to add to it."""


def describe_os_error(error: OSError) -> str | None:
    """What the system refused, in one line, where a person can do something about it; None for anything else."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # The system names no file that is open; `danalab.files.naming` names those of ours.
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (
        f"standard output, or a file that was open, could not be written: {error.strerror}" if full else None
    )


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor or change the terminal."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text
    )


def nearest(name: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest of `choices`, or an empty string when none is close.

    The longest choice that `name` begins with is closest: cosine means cos, not cos_inf.
    """
    choices = list(choices)
    begun = [choice for choice in choices if len(choice) > 2 and name.startswith(choice)]
    close = sorted(begun, key=len)[-1:] or difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def first_line(error: object) -> str:
    """The first line of an error's message, at most 200 characters; its type if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__

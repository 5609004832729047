"""The run folder of a verb, given as its first argument or by --run."""

from pathlib import Path

from danalab.errors import UserError


def chosen_run(positional: Path | None, flag: Path | None) -> Path | None:
    """The one of the two that was given, or None."""
    if positional is not None and flag is not None:
        raise UserError(f"{positional} and --run {flag}: give the run folder once")
    return flag if positional is None else positional


def required_run(positional: Path | None, flag: Path | None, verb: str) -> Path:
    """As `chosen_run`."""
    run = chosen_run(positional, flag)
    if run is None:
        raise UserError(f"give a run folder: danalab {verb} RUN")
    return run

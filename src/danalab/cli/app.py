"""The `danalab` command: finds the verb, parses its flags, and turns errors into one line and exit code 2.

A verb module holds `Flags` (a data class) and `run(flags)`, or `SUBVERBS = {name: (Flags, run)}`, or both; a module of
several verbs `VERBS = {verb: (Flags, run)}`. With `TAKES_REST`, `run(flags, words)` also gets what follows `--`.
"""

import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from danalab import __version__
from danalab.errors import (
    EXTRA_OF,
    FirstRankError,
    LostRankError,
    MissingExtra,
    UserError,
    describe_os_error,
    printable,
)
from danalab.hardware import limit_threads
from danalab.tables import key_of

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "start": {
        "demo": ("AdamW and ADana side by side on real text, in minutes on a laptop CPU", "demo"),
        "speedrun": (
            "train a chat model from text in one command: base, mid, sft, rl, scores, report",
            "speedrun",
        ),
    },
    "train": {
        "plan": ("print size, steps, learning rate, FLOPs and memory of a run; trains nothing", "plan"),
        "train": ("train a model; resumes automatically", "training"),
        "mid": ("continue a run's pre-training on conversations", "training"),
        "sft": ("fine-tune a run on conversations", "training"),
        "rl": ("train a run to answer tasks by rewards of its answers", "training"),
    },
    "use": {
        "chat": ("talk to a model in the terminal", "chat"),
        "serve": ("start a chat web page and an OpenAI-compatible API", "serve"),
        "generate": ("sample text from a run, or from a model in Hugging Face format", "generate"),
        "eval": ("evaluate a run: loss on its validation split, or scores on tasks", "eval"),
        "export": ("write a run's model in Hugging Face format", "exchange"),
        "import": ("make a run folder of a model in Hugging Face format", "exchange"),
    },
    "compare": {
        "compare": ("compare runs: table, loss curves, tokens to equal loss", "compare"),
        "sweep": ("train many runs from a grid over flags; resumable", "sweep"),
        "ladder": ("train optimizers at several sizes, tuned alike, with several seeds; resumable", "ladder"),
        "report": ("fit scaling laws to a ladder and write the report", "report"),
        "judge": ("test whether one optimizer beats another", "judge"),
        "optim": ("list the optimizers with their hyperparameters, compare them on small problems", "optim"),
    },
    "data": {
        "data": ("prepare corpora as token shards, inspect them, train and evaluate tokenizers", "data"),
    },
    "more": {
        "theory": (
            "study small power-law models on which the theory can be computed; writes figures",
            "theory",
        ),
        "slurm": ("write and submit a job script that requeues until the run's last step", "slurm"),
        "bench": ("benchmark speed on this machine, as ratios to named peers", "bench"),
    },
}
"""Heading of `danalab --help` -> verb -> (what it does, its module in danalab.cli)."""

COMMANDS = {verb: command for verbs in VERBS.values() for verb, command in verbs.items()}
_TRAINS = {"demo", "speedrun", "train", "mid", "sft", "rl", "sweep", "ladder", "judge", "optim"}
"""Verbs that train, with other work beside it on the same cores (`yield_cores`)."""
_MEANT = {
    "sample": "generate", "inference": "generate", "evaluate": "eval", "pretrain": "train", "finetune": "sft",
    "convert": "export", "tokenize": "data prepare", "prepare": "data prepare", "tune": "sweep", "plot": "compare",
}  # fmt: skip
"""Words of other programs -> our verbs."""
_LIGHT = {"optim", "bench"}
"""Verbs of which a part works with torch alone, or says itself what it needs."""

LONGEST_LINE = 1500
"""Characters of an error message that are printed."""

SPINS = 1_000
"""Turns of the loop in which a CPU thread waits before it sleeps. With GNU OpenMP's own 300,000, waiting threads keep
the cores of a busy machine from the thread that they wait for (notes/lab-notebook.md, "Waiting threads")."""


CITATION = """\
@misc{ferbach2026logarithmic,
  title = {Logarithmic-time Schedules for Scaling Language Models with Momentum}, year = {2026}, eprint = {2602.05298},
  author = {Damien Ferbach and Courtney Paquette and Gauthier Gidel and Katie Everett and Elliot Paquette}}
@misc{ferbach2025dimension,
  title = {Dimension-adapted Momentum Outscales SGD}, year = {2025}, eprint = {2505.16098},
  author = {Damien Ferbach and Katie Everett and Gauthier Gidel and Elliot Paquette and Courtney Paquette}}"""
"""The papers of the optimizers, as `danalab --cite` prints them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 for bad input)."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be valid UTF-8
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # nor what a person types
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = (
        arguments.index("--") if "--" in arguments else len(arguments)
    )  # the words after it are another command's
    debug = "--debug" in arguments[:end]
    arguments = [a for a in arguments[:end] if a != "--debug"] + arguments[end:]
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except FirstRankError:
        return 2  # rank 0 has printed it
    except UserError as error:
        if debug:
            raise
        return _fail(str(error))
    except LostRankError as error:
        if debug and not error.quiet:
            raise
        if not error.quiet:
            _fail(str(error))
        if error.in_rank:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        return 1
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if debug or module not in EXTRA_OF:
            raise
        return _fail(str(MissingExtra(module, f"danalab {arguments[0]}")))
    except BrokenPipeError:
        # The reader (head, less) closed the pipe. Python would report it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        reason = describe_os_error(error)
        if debug or reason is None:
            raise
        return _fail(reason)
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed (`>&-`): their numbers would go to the next files of a run."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # os.open takes the lowest free number: this one
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "r" if number == 0 else "w"))  # noqa: SIM115


def _fail(message: str, code: int = 2) -> int:
    # A path may not be valid UTF-8.
    line = printable(" ".join(message.split()).encode(errors="backslashreplace").decode())
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}... ({len(line)} characters)"
    print(f"danalab: error: {line}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    answer = None
    match arguments:
        case []:
            answer = _beginning()
        case ["-h" | "--help" | "help", *_]:
            answer = _usage()
        case ["-V" | "--version", *_]:
            answer = f"danalab {__version__}"
        case ["--cite", *_]:
            answer = CITATION
    if answer is not None:
        print(answer)
        return 0
    if arguments[0] in _MEANT:
        raise UserError(f"unknown command '{arguments[0]}' (did you mean '{_MEANT[arguments[0]]}'?)")
    verb, rest = key_of(COMMANDS, arguments[0], "command"), arguments[1:]
    if verb not in _LIGHT and importlib.util.find_spec("pydantic") is None:
        raise MissingExtra("pydantic", f"danalab {verb}")
    limit_threads()
    if verb in _TRAINS:
        yield_cores()
    module = module_of(verb)
    prog = f"danalab {verb}"
    known = subverbs(module)
    if known and (not hasattr(module, "Flags") or (rest and rest[0] in known)):
        prog, flags_type, run, rest = _subverb(module, known, prog, rest)
        if run is None:
            return 0
    else:
        flags_type, run = module.VERBS[verb] if hasattr(module, "VERBS") else (module.Flags, module.run)
    from danalab.cli._shared.flags import parse

    passed_on: list[str] = []
    if getattr(module, "TAKES_REST", False) and "--" in rest:
        rest, passed_on = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    try:
        parsed = parse(flags_type, rest, prog=prog, description=_first_paragraph(run, module))
    except UserError as error:
        if (
            os.environ.get("RANK", "0") != "0"
        ):  # all ranks of torchrun have the same flags: one of them says it
            raise FirstRankError(str(error)) from error
        raise
    if parsed.print_config:
        resolve = getattr(module, "resolved_config", None)
        print(parsed.as_yaml(resolve(parsed.flags) if resolve else None), end="")
        return 0
    return (run(parsed.flags, passed_on) if hasattr(module, "TAKES_REST") else run(parsed.flags)) or 0


def module_of(verb: str) -> ModuleType:
    """The module of a verb."""
    return importlib.import_module(f"danalab.cli.{COMMANDS[verb][1]}")


def subverbs(module: ModuleType) -> dict[str, Any]:
    """Name -> (type of the flags, function) of a verb's module."""
    return getattr(module, "SUBVERBS", {})


def flag_types() -> dict[str, type | None]:
    """Verb, or verb and subverb -> the data class of its flags; None for a verb that has subverbs only."""
    types: dict[str, type | None] = {}
    for verb in COMMANDS:
        try:
            module = module_of(verb)
        except UserError:  # `bench`, where its measures are not
            types[verb] = None
            continue
        types[verb] = module.VERBS[verb][0] if hasattr(module, "VERBS") else getattr(module, "Flags", None)
        types |= {f"{verb} {name}": flags for name, (flags, _) in subverbs(module).items()}
    return types


def yield_cores() -> None:
    """Let waiting threads sleep soon, in this process and those that it starts. Call it before torch is loaded."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():  # the user has not chosen
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def _subverb(
    module: ModuleType, known: dict[str, Any], prog: str, rest: list[str]
) -> tuple[str, Any, Callable[..., int | None] | None, list[str]]:
    if not rest or rest[0] in ("-h", "--help"):
        width = max(12, *map(len, known))
        lines = [f"  {name:<{width}} {_first_line(run)}" for name, (_, run) in known.items()]
        print(f"usage: {prog} COMMAND [flags]\n\n{_first_line(module)}\n\n" + "\n".join(lines))
        return prog, None, None, []
    name = key_of(known, rest[0], "command")
    flags_type, run = known[name]
    return f"{prog} {name}", flags_type, run, rest[1:]


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _first_paragraph(run: Any, module: ModuleType) -> str:
    text = run.__doc__ or module.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def _beginning() -> str:
    groups = "\n".join(f"  {group:<8} {', '.join(verbs)}" for group, verbs in VERBS.items())
    return (
        f"danalab {__version__}: a pre-training lab around logarithmic-time optimizers\n\n"
        "Three things to type:\n"
        "  danalab demo             AdamW and ADana side by side on real text: 4 minutes on two cores\n"
        "  danalab plan --heads 4   what a run would be; trains nothing\n"
        "  danalab train --d-model 64 --n-layers 2 --n-heads 1 --seq-len 128 --batch-size 8 --iterations 300\n\n"
        f"Commands:\n{groups}\n\n"
        "danalab --help says what each does, danalab COMMAND --help what it takes."
    )


def _usage() -> str:
    width = max(map(len, COMMANDS))
    groups = [
        f"{group}\n" + "\n".join(f"  {verb:<{width}}  {what}" for verb, (what, _) in verbs.items())
        for group, verbs in VERBS.items()
    ]
    return (
        f"danalab {__version__}: a pre-training lab around logarithmic-time optimizers\n\n"
        "usage: danalab COMMAND [flags]\n\n" + "\n\n".join(groups) + "\n\n"
        "To begin: danalab demo, danalab plan --heads 4, danalab optim list.\n"
        "Every command takes --help, --config FILE.yaml, --print-config and --debug (show tracebacks). Your own\n"
        "optimizer, schedule, task, reward or data source is FILE.py:NAME.\n"
        "danalab --cite prints the papers of the optimizers, danalab --version the version."
    )

"""The `danalab` command: finds the verb, parses its flags, and turns errors into one line and exit code 2.

A verb's module has `VERBS`, a dict: "data info" -> (data class of the flags, function of them). The function prints,
or returns an `Answer`, and may return an exit code.
"""

import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
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
from danalab.files import finite
from danalab.hardware import limit_threads
from danalab.tables import key_of

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
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
        "sft": ("fine-tune a run on conversations", "training"),
        "rl": ("train a run to answer tasks by rewards of its answers", "training"),
    },
    "use": {
        "chat": ("talk to a model in the terminal", "chat"),
        "serve": ("start a chat web page and an OpenAI-compatible API", "serve"),
        "generate": ("sample text from a run, or from a model in Hugging Face format", "generate"),
        "eval": ("evaluate a run: loss on its validation split, or scores on tasks", "eval"),
        "export": ("write a run's model in Hugging Face format", "exchange"),
    },
    "compare": {
        "compare": ("compare runs: table, loss curves, tokens to equal loss", "compare"),
        "sweep": ("train many runs from a grid over flags; resumable", "sweep"),
        "ladder": ("train optimizers at several sizes, tuned alike, with several seeds; resumable", "ladder"),
        "report": ("fit scaling laws to a ladder and write the report", "ladder"),
        "judge": ("test whether one optimizer beats another", "judge"),
        "optim": ("list the optimizers with their hyperparameters, compare them on small problems", "optim"),
    },
    "data": {
        "data": ("prepare corpora as token shards, inspect them, train and evaluate tokenizers", "data"),
    },
    "more": {
        "mid": ("continue a run's pre-training on conversations", "training"),
        "import": ("make a run folder of a model in Hugging Face format", "exchange"),
        "theory": (
            "study small power-law models on which the theory can be computed; writes figures",
            "theory",
        ),
        "slurm": ("write and submit a job script that requeues until the run's last step", "slurm"),
        "bench": ("benchmark speed on this machine, as ratios to named peers", "bench"),
    },
}
"""Heading of `danalab --help` -> verb -> (what it does, its module in danalab.cli); --help-all lists the last, too."""

COMMANDS = {verb: command for verbs in GROUPS.values() for verb, command in verbs.items()}
_TRAINS = {"demo", "speedrun", "plan", "train", "mid", "sft", "rl", "sweep", "ladder", "judge", "optim"}
"""Verbs that train, with other work beside it on the same cores (`yield_cores`)."""
_MEANT = {
    "sample": "generate", "inference": "generate", "evaluate": "eval", "pretrain": "train", "finetune": "sft",
    "convert": "export", "tokenize": "data prepare", "prepare": "data prepare", "tune": "sweep", "plot": "compare",
}  # fmt: skip
"""Words of other programs -> our verbs."""
_HELP = ("-h", "--help", "--help-all")

SPINS = 1_000
"""Turns of the loop in which a CPU thread waits before it sleeps. With GNU OpenMP's own 300,000, waiting threads keep
the cores of a busy machine from the thread that they wait for (notes/lab-notebook.md, "Waiting threads")."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 for bad input)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be valid UTF-8
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # nor what a person types
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is another command's
    debug = "--debug" in arguments[:end]
    arguments = [word for word in arguments[:end] if word != "--debug"] + arguments[end:]
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


def _fail(message: str, code: int = 2) -> int:
    # A path may not be valid UTF-8.
    line = printable(" ".join(message.split()).encode(errors="backslashreplace").decode())
    print(f"danalab: error: {line}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case [] | ["-h" | "--help" | "--help-all" | "help", *_]:
            print(_usage([group for group in GROUPS if group != "more" or "--help-all" in arguments]))
            return 0
        case ["-V" | "--version", *_]:
            print(f"danalab {__version__}")
            return 0
    if arguments[0] in _MEANT:
        raise UserError(f"unknown command '{arguments[0]}' (did you mean '{_MEANT[arguments[0]]}'?)")
    verb, rest = key_of(COMMANDS, arguments[0], "command"), arguments[1:]
    limit_threads()
    if verb in _TRAINS:
        yield_cores()
    inner = commands_of(verb)
    name = ""
    if "" not in inner and (not rest or rest[0] in _HELP):
        width = max(12, *map(len, inner))
        lines = [f"  {name:<{width}} {_first_paragraph(run)}" for name, (_, run) in inner.items()]
        print(f"usage: danalab {verb} COMMAND [flags]\n\n{COMMANDS[verb][0]}\n\n" + "\n".join(lines))
        return 0
    if "" not in inner or (rest and rest[0] in inner):
        name, rest = key_of(inner, rest[0], "command"), rest[1:]
    flags_type, run = inner[name]
    return _run(flags_type, run, rest, f"danalab {verb} {name}".rstrip())


def commands_of(verb: str) -> dict[str, tuple[type, Callable[..., Any]]]:
    """Inner name -> (data class of the flags, function) of a verb; that of the verb itself is empty."""
    module = importlib.import_module(f"danalab.cli.{COMMANDS[verb][1]}")
    return {words.partition(" ")[2]: what for words, what in module.VERBS.items() if words.split()[0] == verb}


def _run(flags_type: type, run: Callable[..., Any], words: list[str], prog: str) -> int:
    """Run a verb on words, or print its help or configuration. Returns the exit code."""
    from danalab.train.config.flags import Answer, as_yaml, help_text, parse

    end = words.index("--") if "--" in words else len(words)
    asked = {*_HELP, "--print-config"} & set(words[:end])
    if asked - {"--print-config"}:
        print(help_text(flags_type, prog, _first_paragraph(run), everything="--help-all" in asked), end="")
        return 0
    try:
        flags = parse(flags_type, [w for w in words[:end] if w not in asked] + words[end:], prog)
    except UserError as error:
        if os.environ.get("RANK", "0") != "0":  # all ranks have the same flags: one of them says it
            raise FirstRankError(str(error)) from error
        raise
    if asked:
        resolve = getattr(sys.modules[run.__module__], "resolved_config", None)
        print(as_yaml(flags, resolve(flags) if resolve else {}), end="")
        return 0
    answer = run(flags)
    if not isinstance(answer, Answer):
        return answer or 0
    if flags.json:
        print(json.dumps(finite(answer.facts), allow_nan=False))
    elif answer.lines:
        print(*answer.lines, sep="\n")
    return answer.code


def yield_cores() -> None:
    """Let waiting threads sleep soon, in this process and those that it starts. Call it before torch is loaded."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():  # the user has not chosen
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def _first_paragraph(run: Any) -> str:
    return " ".join(run.__doc__.strip().split("\n\n")[0].split())


def _usage(groups: Sequence[str]) -> str:
    width = max(map(len, COMMANDS))
    lists = [
        f"{group}\n" + "\n".join(f"  {verb:<{width}}  {what}" for verb, (what, _) in GROUPS[group].items())
        for group in groups
    ]
    more = "" if "more" in groups else f"\n\nMore, with --help-all: {', '.join(GROUPS['more'])}."
    return (
        f"danalab {__version__}: a pre-training lab around logarithmic-time optimizers\n\n"
        "usage: danalab COMMAND [flags]\n\n" + "\n\n".join(lists) + f"{more}\n\n"
        "To begin: danalab demo, danalab plan --heads 4, danalab optim list.\n"
        "Every command takes --help, --config FILE.yaml, --print-config and --debug (show tracebacks). Your own\n"
        "optimizer, schedule, task, reward or data source is FILE.py:NAME."
    )

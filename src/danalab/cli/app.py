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
from typing import Any, NamedTuple

from danalab import __version__
from danalab.errors import (
    EXTRA_OF,
    FirstRankError,
    LostRankError,
    MissingExtra,
    UserError,
    describe_os_error,
    nearest,
    printable,
)
from danalab.registry import Registry
from danalab.scaling.hardware import limit_threads


class Command(NamedTuple):
    """A verb of the command line."""

    group: str
    """Heading of `danalab --help` under which it stands."""
    summary: str
    module: str = ""
    """Path of its module; default danalab.cli.VERB."""
    trains: bool = False
    """Whether it trains, with other work beside it on the same cores (`yield_cores`)."""
    light: bool = False
    """Whether a part of it works with torch alone, or says itself what it needs."""


COMMANDS: Registry[Command | ModuleType] = Registry("command")
"""Verb -> what it is, in the order of --help and of docs/commands.md within its group; of a plug-in also its module."""

_TRAINING, _EXCHANGE = "danalab.cli.training", "danalab.cli.exchange"
for _verb, _command in {
    "demo": Command("start", "AdamW and ADana side by side on real text, in minutes on a laptop CPU", trains=True),
    "plan": Command("train", "what a run would be: parameters, tokens, steps, LR, weight decay, FLOPs; trains nothing"),
    "train": Command("train", "train a model; resumes automatically", _TRAINING, trains=True),
    "mid": Command("train", "continue a run's pre-training on conversations", _TRAINING, trains=True),
    "sft": Command("train", "fine-tune a run on conversations", _TRAINING, trains=True),
    "rl": Command("train", "train a run to answer tasks by rewards of its answers", _TRAINING, trains=True),
    "serve": Command("use", "a page to talk to a model, and an API in OpenAI's schema"),
    "generate": Command("use", "sample text from a run, or from a model in Hugging Face format"),
    "eval": Command("use", "evaluate a run: loss on its validation split, or scores on tasks"),
    "export": Command("use", "write a run's model in Hugging Face format", _EXCHANGE),
    "import": Command("use", "make a run folder of a model in Hugging Face format", _EXCHANGE),
    "merge": Command(
        "use", "average checkpoints of a run, as if its learning rate had decayed; trains nothing", _EXCHANGE
    ),
    "compare": Command("compare", "runs side by side: table, loss curves, tokens to equal loss"),
    "sweep": Command("compare", "many runs from a grid over flags; resumable", trains=True),
    "ladder": Command("compare", "optimizers at several sizes, tuned alike, several seeds; resumable", trains=True),
    "report": Command(
        "compare", "laws of a ladder and the compute that its optimizers save: tables, figures, one page"
    ),
    "judge": Command(
        "compare", "is one optimizer better than another: paired seeds, an answer as soon as it is known", trains=True
    ),
    "optim": Command("compare", "the optimizers with their hyper-parameters", trains=True, light=True),
    "data": Command("data", "prepare corpora as token shards, look at them, train and evaluate tokenizers"),
    "bench": Command("more", "measure speed on this machine, as ratios to named peers", light=True),
}.items():
    COMMANDS.add(_verb, _command)

RENAMED = {
    ("fit",): ("report", "--tables-only"),
    ("import-wandb",): ("ladder", "import-wandb"),
    ("tokenizer", "train"): ("data", "train-tokenizer"),
    ("tokenizer", "eval"): ("data", "eval-tokenizer"),
    ("tokenizer", "fetch-gpt2"): ("data", "fetch-gpt2"),
    ("tokenizer",): ("data",),
}
"""First words of commands of version 0.1 -> those of today; the old ones work until 0.3."""

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
    end = arguments.index("--") if "--" in arguments else len(arguments)  # the words after it are another command's
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
        case ["--install-completion", *rest]:
            from danalab.cli._shared.completion import install

            answer = install(flag_types(), *rest[:1])
    if answer is not None:
        print(answer)
        return 0
    name, *rest = _renamed(arguments)
    verb = COMMANDS.canonical(name)
    command = _command_of(verb)
    if not command.light and importlib.util.find_spec("pydantic") is None:
        raise MissingExtra("pydantic", f"danalab {verb}")
    limit_threads()
    if command.trains:
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
        if os.environ.get("RANK", "0") != "0":  # all ranks of torchrun have the same flags: one of them says it
            raise FirstRankError(str(error)) from error
        raise
    if parsed.print_config:
        resolve = getattr(module, "resolved_config", None)
        print(parsed.as_yaml(resolve(parsed.flags) if resolve else None), end="")
        return 0
    return (run(parsed.flags, passed_on) if hasattr(module, "TAKES_REST") else run(parsed.flags)) or 0


def commands() -> dict[str, Command]:
    """Verb -> its command, group by group, those of annexes and plug-ins included."""
    known = {verb: _command_of(verb) for verb in COMMANDS.names()}
    groups = [command.group for command in known.values()]
    return dict(sorted(known.items(), key=lambda item: groups.index(item[1].group)))


def _command_of(verb: str) -> Command:
    known = COMMANDS.get(verb)
    return known if isinstance(known, Command) else Command("plug-ins", _first_line(getattr(known, "run", known)))


def module_of(verb: str) -> ModuleType:
    """The module of a verb: here, of an annex or of a plug-in."""
    known = COMMANDS.get(verb)
    return importlib.import_module(known.module or f"danalab.cli.{verb}") if isinstance(known, Command) else known


def subverbs(module: ModuleType) -> dict[str, Any]:
    """Name -> (type of the flags, function) of a verb's module; plug-ins add to those that are a `Registry`."""
    known = getattr(module, "SUBVERBS", {})
    return {name: known.get(name) for name in sorted(known.names())} if isinstance(known, Registry) else known


def flag_types() -> dict[str, type | None]:
    """Verb, or verb and subverb -> the data class of its flags; None for a verb that has subverbs only."""
    types: dict[str, type | None] = {}
    for verb in COMMANDS.names():
        try:
            module = module_of(verb)
        except UserError:  # `bench`, where its measures are not
            types[verb] = None
            continue
        types[verb] = module.VERBS[verb][0] if hasattr(module, "VERBS") else getattr(module, "Flags", None)
        types |= {f"{verb} {name}": flags for name, (flags, _) in subverbs(module).items()}
    return types


def _renamed(arguments: list[str]) -> list[str]:
    """The command in today's words; says so on standard error where it changes them."""
    for old, new in RENAMED.items():
        if tuple(arguments[: len(old)]) == old:
            print(f"note: 'danalab {' '.join(old)}' is now 'danalab {' '.join(new)}'", file=sys.stderr)
            return [*new, *arguments[len(old) :]]
    return arguments


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
    name = rest[0]
    if name not in known:
        raise UserError(f"unknown command '{prog} {name}'{nearest(name, known)}; known: {', '.join(known)}")
    flags_type, run = known[name]
    return f"{prog} {name}", flags_type, run, rest[1:]


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _first_paragraph(run: Any, module: ModuleType) -> str:
    text = run.__doc__ or module.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def _groups() -> dict[str, dict[str, str]]:
    """Group -> its verbs, each with what it does."""
    groups: dict[str, dict[str, str]] = {}
    for verb, command in commands().items():
        groups.setdefault(command.group, {})[verb] = command.summary
    return groups


def _beginning() -> str:
    groups = "\n".join(f"  {group:<8} {', '.join(verbs)}" for group, verbs in _groups().items())
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
    width = max(map(len, COMMANDS.names()))
    groups = [
        f"{group}\n" + "\n".join(f"  {verb:<{width}}  {what}" for verb, what in verbs.items())
        for group, verbs in _groups().items()
    ]
    return (
        f"danalab {__version__}: a pre-training lab around logarithmic-time optimizers\n\n"
        "usage: danalab COMMAND [flags]\n\n" + "\n\n".join(groups) + "\n\n"
        "To begin: danalab demo, danalab plan --heads 4, danalab optim list.\n"
        "Every command takes --help, --config FILE.yaml, --print-config, --plugin FILE.py (own optimizers, schedules,\n"
        "callbacks, data, tasks and rewards) and --debug (show tracebacks).\n"
        "danalab --cite prints the papers of the optimizers, danalab --version the version;\n"
        "danalab --install-completion [bash|zsh|fish] lets Tab complete commands and flags."
    )

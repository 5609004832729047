"""The reference pages, written from the code at each build: commands, settings, metrics, files, Python API."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import build_optimizers
from _tooling.contents import COPIED, copied
from danalab.cli._shared.flags import FIELD, shared_options
from danalab.cli._shared.options import Option, docstrings, options_of
from danalab.cli.app import COMMANDS, flag_types, module_of, subverbs
from danalab.files import read_json
from danalab.optim import list_optimizers, optimizer_spec
from danalab.registry import Registry
from danalab.train.config.fields import flag
from danalab.train.config.train_config import TrainConfig
from danalab.train.run import schemas
from danalab.train.run.metrics import described_metrics

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("optim", "scaling", "models", "data", "inference", "theory")
"""Parts of danalab whose public names are documented."""

KINDS = {
    "run": "another run",
    "input": "another run, if the values that follow from it differ",
    "data": "another run, if the data differ",
    "execution": "the same run",
    "job": "the same run; holds for one job",
}
"""What another value of a setting means on resume."""

MANY = 50
"""A command that shares more flags with training runs than these links to them."""

FILES = {
    "metrics.jsonl": (schemas.Row, "One JSON object a logged step."),
    "summary.json": (schemas.Summary, "How the run ended, and its last values."),
    "meta.json": (schemas.Meta, "In each checkpoint: everything but tensors."),
}


def write(folder: Path) -> None:
    """Write all pages; a page that has not changed keeps its time, so that Sphinx does not read it again."""
    pages = {"index.md": index(), "configuration.md": configuration(), "metrics.md": metrics(), "files.md": files()}
    pages |= {"optimizers.md": optimizers()}
    pages |= {f"cli/{verb}.md": verb_page(verb) for verb in COMMANDS}
    pages |= {place: copied((ROOT / name).read_text(encoding="utf-8")) for name, place in COPIED.items()}
    pages |= {f"api/{package}.md": api_page(package) for package in PACKAGES}
    for name, text in pages.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")


def index() -> str:
    """The start page, with the navigation of the reference."""
    first = ["configuration", "metrics", "files", "optimizers"]
    parts = [("Training runs", first), ("Commands", [f"cli/{verb}" for verb in COMMANDS])]
    parts.append(("Project", [name.removesuffix(".md") for name in COPIED.values()]))
    parts.append(("Python", [f"api/{package}" for package in PACKAGES]))
    lines = ["# Reference", "", "Generated from the code."]
    for title, names in parts:
        lines += ["", f"## {title}", "", "```{toctree}", ":maxdepth: 1", "", *names, "```"]
    return "\n".join(lines) + "\n"


# ---- commands ----


def verb_page(verb: str) -> str:
    """All flags of a verb, by section; of each subverb where it has some."""
    summary = COMMANDS[verb][0]
    lines = [f"# danalab {verb}", "", f"{summary[0].upper()}{summary[1:]}."]
    flags = flag_types()[verb]
    below = subverbs(module_of(verb))
    if flags is not None:
        lines += ["", *_flags(f"danalab {verb}", flags, "##")]
    for name, (own, run) in below.items():
        lines += [
            "",
            f"## danalab {verb} {name}",
            "",
            _paragraph(run),
            "",
            *_flags(f"danalab {verb} {name}", own, "###"),
        ]
    return "\n".join(lines) + "\n"


def _flags(prog: str, flags: type, level: str) -> list[str]:
    """The flags of a command by section, but those of training runs as a link to the page that explains them."""
    helps = docstrings(flags)
    options = options_of(flags, leave_out=FIELD)
    options += shared_options() if len(options) < len(options_of(flags)) else []
    shared = {option.name for option in options if _flag(option, helps) in _of_training_runs()}
    shared = shared if len(shared) > MANY else set()
    places = " ".join(option.name.upper() for option in options if option.positional)
    lines = ["```text", " ".join(filter(None, [prog, places, "[flags]"])), "```"]
    if shared:
        page, names = "[flags of training runs](../configuration.md)", [option.name for option in options]
        every = [*options_of(TrainConfig, leave_out=FIELD), *shared_options()]
        missing = [f"`{flag(option.name)}`" for option in every if option.name not in names]
        taken = [f"`{flag(name)}`" for name in names if name in shared]
        short = f" except {', '.join(missing)}" if missing else ""
        said = f"Of the {page} it takes {', '.join(taken)}." if len(missing) > 5 else f"It takes all {page}{short}."
        lines += ["", said]
        options = [option for option in options if option.name not in shared]
    titles = sorted({option.section for option in options}, key=[option.section for option in options].index)
    for title in titles:
        if title:
            lines += ["", f"{level} {title[0].upper()}{title[1:]}"]
        lines += ["", *(_flag(option, helps) for option in options if option.section == title)]
    return lines


@cache
def _of_training_runs() -> frozenset[str]:
    """What is said of each flag of `danalab train`."""
    helps = docstrings(TrainConfig)
    return frozenset(_flag(option, helps) for option in (*options_of(TrainConfig), *shared_options()))


def _flag(option: Option, helps: dict[str, str]) -> str:
    name = option.name.upper() if option.positional else f"{flag(option.name)} {option.metavar}".strip()
    text = _prose(option.help or helps.get(option.name, ""))
    if option.default and "default" not in text.lower():
        text += f" Default: {option.default}."
    aliases = [f"`--{alias}`" for alias in option.aliases]
    return f"- `{name}`: {text}" + (f" Also {', '.join(aliases)}." if aliases else "")


# ---- run folders ----


def configuration() -> str:
    """The keys of the configuration of a training run."""
    lines = [
        "# Flags and keys of training runs", "",
        "Flags of `danalab train`, which other commands share. Each is also a key of `--config FILE.yaml`, of",
        "`--print-config`, and of a run's `config.json`, in five parts there: `--batch-size` is `batch_size`. `null`",
        "means automatic. *Resume* says what another value means for a run that exists. `--opt NAME` adds the",
        "[settings of an optimizer](optimizers.md).",
    ]  # fmt: skip
    helps = docstrings(TrainConfig)
    kinds = {field.name: field.metadata.get("kind", "run") for field in dataclasses.fields(TrainConfig)}
    options = [*options_of(TrainConfig), *shared_options()]
    for title in dict.fromkeys(option.section for option in options):
        lines += ["", f"## {title[0].upper()}{title[1:]}" if title else "## Other", ""]
        for option in options:
            if option.section == title:
                kind = option.metavar.strip("{}").replace(",", ", ").lower() or "true or false"
                default = option.default or ("false" if option.is_switch else "null")
                text = _prose(option.help or helps.get(option.name, ""))
                also = f" Also {', '.join(f'`--{alias}`' for alias in option.aliases)}." if option.aliases else ""
                resume = KINDS[kinds.get(option.name, "run")]
                lines.append(f"- `{flag(option.name)}` ({kind}; `{default}`): {text}{also} *Resume: {resume}.*")
    return "\n".join(lines) + "\n"


def optimizers() -> str:
    """All settings of all optimizers, and the parallel modes of each, as measured."""
    measured = read_json(ROOT / "bench" / "results" / "optim_capabilities.json")["optimizers"]
    lines = ["# Settings of optimizers", "", "What each optimizer does: [optimizers](../optimizers.md)."]
    for name in list_optimizers():
        spec, modes = optimizer_spec(name), {mode: _exactness(cell) for mode, cell in measured[name].items()}
        same = f"{modes['single']} in all" if len({*modes.values()}) == 1 else ""
        said = f"Parallel modes: {same or ', '.join(f'{mode} {how}' for mode, how in modes.items())}."
        lines += ["", f"## {name}", "", f"{spec.summary[0].upper()}{spec.summary[1:]}. {build_optimizers.facts(spec)}"]
        lines += [f"Reference: {spec.reference}. {said}", "", *build_optimizers.table(spec)]
    return "\n".join(lines) + "\n"


def _exactness(cell: Mapping[str, Any]) -> str:
    worst = max(cell.get("step", 0), cell.get("reload", 0))
    return "refused" if "refused" in cell else f"within {worst:.0e}" if worst else "bitwise"


def metrics() -> str:
    """The keys of the rows of metrics.jsonl."""
    known = described_metrics().items()
    rows = [("key", "unit", "meaning"), *((f"`{name}`", unit, meaning) for name, (unit, meaning) in known)]
    text = "Keys of a row of `metrics.jsonl`, and of mirrors in TensorBoard and wandb. A value that is not known"
    return (
        "\n".join(
            [
                "# Metrics",
                "",
                text,
                "or not finite is left out. `<name>` stands for a name of the run.",
                "",
                *_table(rows),
            ]
        )
        + "\n"
    )


def files() -> str:
    """The files of a run folder, with their schemas."""
    lines = [
        "# Files", "",
        "What danalab writes, and where it is described.", "",
        "- Data sets: [prepared shards, raw token files](../data.md), [arrays](../pretokenised.md)",
        "- [Checkpoints](../checkpoints.md), in torch.distributed.checkpoint's format",
        "- `config.json` of a run: its [configuration](configuration.md), the resolved plan, versions and fingerprints",
        "- Conversations and tasks: [chat](../chat.md), [evaluation](../evaluation.md)",
        "- Ladders: [rows and laws](../ladders.md)",
    ]  # fmt: skip
    for name, (schema, text) in FILES.items():
        lines += ["", f"## {name}", "", f"{text} Unknown keys are kept.", ""]
        rows = [("key", "type", "required")]
        for key, hint in get_type_hints(schema).items():
            rows.append((f"`{key}`", _type(hint), "yes" if key in schema.__required_keys__ else ""))
        lines += _table(rows)
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if inner := [argument for argument in get_args(hint) if isinstance(argument, type) or get_args(argument)]:
        if getattr(hint, "__origin__", None) in (dict, list):
            return "object"
        return " or ".join(dict.fromkeys(_type(each) for each in inner))
    return {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}.get(
        getattr(hint, "__name__", ""), "object"
    )


# ---- Python ----


def api_page(package: str) -> str:
    """The public names of a part of danalab, by autodoc."""
    module = importlib.import_module(f"danalab.{package}")
    lines = [f"# danalab.{package}", "", _prose(_first_paragraph(module)), ""]
    for name in sorted(module.__all__, key=lambda name: (not name[0].islower(), name.lower())):
        thing = getattr(module, name)
        lines += [f"## {name}", ""]
        if not callable(thing):
            known = thing.names() if isinstance(thing, Registry) else list(thing)
            lines += [f"By name: {', '.join(f'`{each}`' for each in known)}.", ""]
            continue
        directive = "autoclass" if inspect.isclass(thing) else "autofunction"
        lines += ["```{eval-rst}", f".. {directive}:: danalab.{package}.{name}"]
        lines += ["   :members:", "   :show-inheritance:"] if directive == "autoclass" else []
        lines += ["```", ""]
    return "\n".join(lines)


# ---- text ----


def _paragraph(run: Any) -> str:
    return _prose(_first_paragraph(run))


def _first_paragraph(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _prose(text: str) -> str:
    """Text of a docstring as Markdown."""
    text = re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", text)
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return text.replace("<", "\\<").replace("*", "\\*").replace("|", "\\|").replace("_", "\\_").replace("$", "\\$")


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + " --- |" * len(rows[0]), *body]

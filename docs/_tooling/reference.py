"""The site's reference, written from the code at each build: what `--help-all` prints, metrics, the Python API."""

import contextlib
import importlib
import inspect
import io
import re
from pathlib import Path

from _tooling.contents import COPIED, copied
from danalab.cli.app import main
from danalab.train.run.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("optim", "scaling", "models", "data", "inference", "theory")
"""Parts of danalab whose public names are documented."""

_NAME = re.compile(r"^  ([a-z][a-z0-9-]*) ", re.MULTILINE)


def write(folder: Path) -> None:
    """Write all pages; a page that has not changed keeps its time, so that Sphinx does not read it again."""
    pages = {"index.md": index(), "metrics.md": metrics()}
    pages |= {f"cli/{verb}.md": verb_page(verb) for verb in verbs()}
    pages |= {place: copied((ROOT / name).read_text(encoding="utf-8")) for name, place in COPIED.items()}
    pages |= {f"api/{package}.md": api_page(package) for package in PACKAGES}
    for name, text in pages.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")


def verbs() -> list[str]:
    """The verbs of `danalab`, in the order of --help."""
    return _NAME.findall(help_of())


def index() -> str:
    """The start page, with the navigation of the reference."""
    parts = {
        "Commands": [f"cli/{verb}" for verb in verbs()],
        "Files": ["metrics"],
        "Python": [f"api/{package}" for package in PACKAGES],
        "Project": [name.removesuffix(".md") for name in COPIED.values()],
    }
    lines = ["# Reference", "", "Generated from the code."]
    for title, names in parts.items():
        lines += ["", f"## {title}", "", "```{toctree}", ":maxdepth: 1", "", *names, "```"]
    return "\n".join(lines) + "\n"


def help_of(*words: str) -> str:
    """What a command prints about itself: all flags, or, of one that has subcommands, those."""
    for flag in ("--help-all", "--help"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(SystemExit):
                main([*words, flag])
        if printed.getvalue():
            return printed.getvalue()
    return ""


def verb_page(verb: str) -> str:
    """The help of a verb, and of each of its subverbs."""
    text = help_of(verb)
    lines = [f"# danalab {verb}", "", "```text", text.rstrip(), "```"]
    for name in _NAME.findall(text) if " COMMAND " in text.partition("\n")[0] else ():
        lines += ["", f"## danalab {verb} {name}", "", "```text", help_of(verb, name).rstrip(), "```"]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """The keys of the rows of metrics.jsonl."""
    lines = [
        "# Metrics",
        "",
        "Keys of a row of `metrics.jsonl`, TensorBoard and W&B. Values that are unknown or not",
    ]
    lines += ["finite are left out; `<name>` stands for a name of the run.", ""]
    lines += ["| key | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in METRICS.items()]
    return "\n".join(lines) + "\n"


def api_page(package: str) -> str:
    """The public names of a part of danalab, by autodoc."""
    module = importlib.import_module(f"danalab.{package}")
    lines = [f"# danalab.{package}", "", "```{eval-rst}", f".. automodule:: danalab.{package}", "```", ""]
    for name in sorted(module.__all__, key=lambda name: (not name[0].islower(), name.lower())):
        thing = getattr(module, name)
        if not callable(thing):
            continue
        directive = "autoclass" if inspect.isclass(thing) else "autofunction"
        lines += [f"## {name}", "", "```{eval-rst}", f".. {directive}:: danalab.{package}.{name}"]
        lines += ["   :members:", "   :show-inheritance:"] if directive == "autoclass" else []
        lines += ["```", ""]
    return "\n".join(lines)

"""Commands on the pages are ones that the command line takes, and links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from danalab.cli._shared.flags import FIELD, parse
from danalab.cli.app import COMMANDS, flag_types
from danalab.optim import optimizer_spec
from danalab.train.config.train_config import TrainConfig

ROOT = Path(__file__).parents[2]
_DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for page in sorted(_DOCS.rglob("*.md")) if page.relative_to(_DOCS).parts[0] != "reference"]  # generated
EVERYWHERE = {"help", "help_all", "config", "plugin", "print_config", "debug", "cite"}
EVERYWHERE |= {"model_dim", "num_layers", "data_path", "output_dir"}  # other names of flags
FLAGS = flag_types()
PLACEHOLDER = re.compile(r"\.\.\.|\[|\$|\b[A-Z]+\b")


def commands(text: str) -> list[tuple[str, bool]]:
    """Every `danalab ...`, and whether it can be run as it stands: in blocks of code, without placeholders."""
    lines = re.findall(
        r"^(?:    |\$ )?(?:[A-Z_]+=\S+ )*(danalab [^\n]*)", re.sub(r"\\\n| *-->", " ", text), re.MULTILINE
    )
    parts = [part.strip() for line in lines for part in re.split(r"&&|\|\||[;|>]", re.split(r"\s#\s", line)[0])]
    inline = [" ".join(span.split()) for span in re.findall(r"`(danalab [^`]*)`", text)]
    whole = [(part, not PLACEHOLDER.search(part)) for part in parts if part.startswith("danalab ")]
    return [*whole, *((span, False) for span in inline)]


CASES = sorted({(page.name, *case) for page in PAGES for case in commands(page.read_text())})


@pytest.mark.parametrize(("page", "command", "whole"), CASES, ids=lambda value: str(value))
def test_a_command_on_a_page_is_understood(page, command, whole):
    verb, *words = shlex.split(re.sub(r"[\[\]]", " ", command))[1:]
    if verb in ("VERB", "...") or verb.startswith("-"):
        return
    for name in verb.split("|"):
        assert name in COMMANDS
        own = FLAGS[name]
        subverbs = {key.split()[1]: flags for key, flags in FLAGS.items() if key.startswith(f"{name} ")}
        if own is not None and (not subverbs or (words[:1] and words[0] not in subverbs)):
            check_flags(f"danalab {name}", own, words, whole)
        elif words and not words[0].startswith(("-", "...")):
            for subverb in re.split(r"[/|]", words[0]):
                assert subverb in subverbs
                check_flags(f"danalab {name} {subverb}", subverbs[subverb], words[1:], whole)


def check_flags(prog: str, flags_type: type, words: list[str], whole: bool) -> None:
    if "--" in words:
        assert prog == "danalab slurm"
        place = words.index("--")
        words, run = words[:place], words[place + 1 :]
        check_flags("danalab train", TrainConfig, run, whole)
    if whole and not {"--help", "--config", "--plugin"} & set(words) and not any(".py:" in word for word in words):
        parse(flags_type, words, prog=prog, description="")
        return
    fields = {field.name.rstrip("_") for field in dataclasses.fields(flags_type)}
    known = fields | EVERYWHERE
    if FIELD in fields:
        opt = words[words.index("--opt") + 1] if "--opt" in words else "adana"
        own = PLACEHOLDER.search(opt) or "--plugin" in words or ".py:" in opt
        known |= set() if own else {"beta1", "beta2", *optimizer_spec(opt).settings}
    for word in words:
        if word.startswith("--"):
            assert word[2:].split("=")[0].removeprefix("no-").replace("-", "_") in known


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "notes").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page):
    for file, name in re.findall(r"(?<![\w/])(tests/[\w/]+\.py)(?:::(test_\w+))?", page.read_text()):
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"

"""The help of a verb: the flags that matter first, all of them by section with --help-all."""

import argparse
from collections.abc import Sequence
from typing import Any

from danalab.cli._shared.options import Option
from danalab.train.config.fields import flag


def help_text(options: Sequence[Option], prog: str, description: str, *, everything: bool, notes: Sequence[str]) -> str:
    """The text that --help prints."""
    parser = argparse.ArgumentParser(
        prog=prog, add_help=False, description=description,
        usage=" ".join([prog, *(option.name.upper() for option in options if option.positional), "[flags]"]),
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )  # fmt: skip
    groups: dict[str, Any] = {}
    hidden = 0
    for option in sorted(options, key=lambda option: not option.positional):
        if not (everything or option.shown):
            hidden += 1
            continue
        title = option.section if everything and option.section else option.heading
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = option.help.replace("%", "%%")
        if option.default and "default" not in text.lower():
            text += f" (default: {option.default})"
        if option.positional:
            groups[title].add_argument(option.name, metavar=option.name.upper(), help=text)
        elif not option.is_switch:
            groups[title].add_argument(flag(option.name), metavar=option.metavar, help=text)
        else:
            both = [flag(option.name), *(["--no-" + flag(option.name)[2:]] if "default" in text.lower() else [])]
            groups[title].add_argument(*both, action="store_true", help=text)
    more = [f"{hidden} more flags: {prog} --help-all."] if hidden else []
    more.append("--config FILE.yaml reads flags from a file, --print-config prints them, --debug shows tracebacks.")
    parser.epilog = " ".join([*more, *notes])
    return parser.format_help()

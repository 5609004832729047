"""Optimizers: list them, show the settings of one, compare them on small problems."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from danalab.cli._shared.options import JsonFlags
from danalab.experiments.settings import CompareConfig
from danalab.train.config.fields import PathText

ARCHITECTURES = ("enoki", "qwen3")
"""Architectures with fitted learning-rate laws."""


@dataclass(frozen=True, kw_only=True)
class ListFlags(JsonFlags):
    opt: PathText | None = None
    """Show one optimizer with all its settings."""


def list_optimizers(flags: ListFlags) -> None:
    """The optimizers; with --opt one of them: settings, defaults, learning rate."""
    from danalab.optim import list_optimizers as names

    chosen = [flags.opt] if flags.opt else names()
    if flags.json:
        flags.print_json({"optimizers": [as_dict(name) for name in chosen]})
    elif flags.opt is None:
        _print_table(chosen)
    else:
        _print_one(flags.opt)


def as_dict(name: str) -> dict[str, Any]:
    """What is known of an optimizer, for JSON."""
    from danalab.optim import settings_of
    from danalab.optimizer_facts import canonical_name, facts_of, rates_to_try

    facts = facts_of(name)
    return {
        "name": canonical_name(name),
        "summary": summary_of(name),
        "decay": facts.decay,
        "log_time": facts.log_time,
        "modes": modes_of(name),
        "learning_rates_to_try": rates_to_try(name),
        "learning_rate": {arch: _rate(arch, name) for arch in ARCHITECTURES},
        "settings": {
            setting: {"default": what.default, "help": what.help}
            for setting, what in settings_of(name).items()
        },
    }


def summary_of(name: str) -> str:
    """The first sentence of an optimizer's docstring."""
    from danalab.optim.build import find_optimizer

    return (inspect.getdoc(find_optimizer(name)) or "").partition("\n")[0]


def modes_of(name: str) -> list[str]:
    """The parallel modes in which an optimizer works."""
    from danalab.errors import UserError
    from danalab.optim.sharded import require_supported

    modes = []
    for mode in ("single", "ddp", "zero", "fsdp", "fsdp+tp"):
        try:
            require_supported(name, mode)
            modes.append(mode)
        except UserError:
            continue
    return modes


def _print_table(names: list[str]) -> None:
    from danalab.optimizer_facts import facts_of, rates_to_try

    rows: list[tuple[str, ...]] = [("name", "decay", "zero", "fsdp", "rates to try", "summary")]
    for name in names:
        modes = modes_of(name)
        rates = ", ".join(f"{rate:.2g}" for rate in rates_to_try(name))
        able = ["yes" if mode in modes else "-" for mode in ("zero", "fsdp")]
        rows.append((name, facts_of(name).decay, *able, rates, summary_of(name)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print(
        "\ndecay: weight decay is multiplied by the learning rate (coupled), or only by the schedule (independent)."
        "\nrates to try: for models with 0.05 to 1 M parameters; danalab sweep --find-lr searches from them"
        "\n\ndanalab optim list --opt NAME shows the settings of one."
    )


def _print_one(name: str) -> None:
    from danalab.optim import settings_of
    from danalab.optimizer_facts import facts_of, rates_to_try

    decay = {"independent": "times the schedule factor only", "coupled": "times the learning rate"}
    print(f"{name}: {summary_of(name)}")
    print(f"weight decay: {decay[facts_of(name).decay]}")
    print(
        f"learning rates to try on a small model: {', '.join(f'{rate:.2g}' for rate in rates_to_try(name))}"
    )
    for arch in ARCHITECTURES:
        rule = _rate(arch, name)
        print(f"learning rate on {arch}: {rule['formula']}: {rule['source']}")
    print(f"parallel modes: {', '.join(modes_of(name))}\n")
    settings = settings_of(name)
    width = max(map(len, settings))
    for setting, what in settings.items():
        print(f"  {setting:<{width}}  {written(what.default):<14} {what.help}".rstrip())


def written(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(written, value))
    if isinstance(value, float):
        return f"{value:g}"
    return {None: "none", True: "true", False: "false"}.get(value, str(value))


def _rate(arch: str, opt: str) -> dict[str, str]:
    from danalab.scaling.learning_rate import lr_law

    law, source = lr_law(arch, opt)
    formula = f"{law.a:.4g}" if law.d == 0 else f"{law.a:.4g} ({law.b:.3g} + P)^{law.d:.3g}"
    return {"formula": formula, "source": source}


@dataclass(frozen=True, kw_only=True)
class CompareFlags(JsonFlags, CompareConfig):
    pass


def compare(flags: CompareFlags) -> None:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    from danalab.experiments.formats import print_table
    from danalab.experiments.optim_compare import compare_optimizers, results_table

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    if flags.print_json(found):
        return
    print_table(*results_table(found["results"]), left=2)
    print(f"\nreport: {flags.out / 'report.md'}")


SUBVERBS = {"list": (ListFlags, list_optimizers), "compare": (CompareFlags, compare)}

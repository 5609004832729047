"""Optimizers: list them, show the settings of one, compare them on small problems."""

import inspect
import shutil
import sys
from dataclasses import dataclass
from typing import Any

from danalab.experiments.settings import CompareConfig
from danalab.train.config.flags import Answer, JsonFlags, PathText, setting


@dataclass(frozen=True, kw_only=True)
class ListFlags(JsonFlags):
    opt: PathText | None = setting(None, "Show one optimizer with all its settings.")


def list_optimizers(flags: ListFlags) -> Answer:
    """The optimizers; with --opt one of them: settings, defaults, learning rate."""
    from danalab.experiments.formats import as_text
    from danalab.optim import list_optimizers as names

    found = [as_dict(name) for name in ([flags.opt] if flags.opt else names())]
    if flags.opt is not None:
        return Answer({"optimizers": found}, about(found[0]))
    rows = [[one["name"], one["decay"], _rates(one), one["summary"].split("; ")[0]] for one in found]
    headings = ["name", "decay", "rates to try", "summary"]
    columns = min(shutil.get_terminal_size((110, 0)).columns, 110)
    lines = [
        *(_cut(line.rstrip(), columns) for line in as_text(headings, rows, left=4).splitlines()),
        "\ndecay: weight decay is multiplied by the learning rate (coupled), or only by the schedule (independent)."
        "\nrates to try: for models with 0.05 to 0.6 M parameters at about 1,000 tokens per step; else see danalab plan"
        "\n\ndanalab optim list --opt NAME shows the settings of one.",
    ]
    return Answer({"optimizers": found}, lines)


def as_dict(name: str) -> dict[str, Any]:
    """What is known of an optimizer."""
    from danalab.optim import settings_of
    from danalab.optim.build import find_optimizer
    from danalab.optimizer_facts import canonical_name, facts_of, rates_to_try
    from danalab.scaling.learning_rate import lr_law

    laws = {}
    for arch in ("enoki", "qwen3"):  # the architectures with fitted laws
        law, source = lr_law(arch, name)
        formula = f"{law.a:.4g}" if law.d == 0 else f"{law.a:.4g} ({law.b:.3g} + P)^{law.d:.3g}"
        laws[arch] = {"formula": formula, "source": source}
    settings = {key: {"default": what.default, "help": what.help} for key, what in settings_of(name).items()}
    return {
        "name": canonical_name(name),
        "summary": (inspect.getdoc(find_optimizer(name)) or "").partition("\n")[0],
        "decay": facts_of(name).decay,
        "log_time": facts_of(name).log_time,
        "learning_rates_to_try": rates_to_try(name),
        "learning_rate": laws,
        "settings": settings,
    }


def about(one: dict[str, Any]) -> list[str]:
    """What is known of one optimizer, as lines."""
    width = max(map(len, one["settings"]))
    return [
        f"{one['name']}: {one['summary']}",
        f"weight decay: {one['decay']}",
        f"learning rates to try on a small model: {_rates(one)}",
        *(
            f"learning rate on {a}: {rule['formula']}: {rule['source']}"
            for a, rule in one["learning_rate"].items()
        ),
        "",
        *(
            f"  {name:<{width}}  {what['default']!s:<14} {what['help']}".rstrip()
            for name, what in one["settings"].items()
        ),
    ]


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 3].rstrip() + "..."


def _rates(one: dict[str, Any]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in one["learning_rates_to_try"])


def compare(flags: CompareConfig) -> Answer:
    """Optimizers on three small problems, with learning rates tuned alike; minutes on two cores."""
    from danalab.experiments.formats import as_text
    from danalab.experiments.optim_compare import compare_optimizers, results_table

    found = compare_optimizers(flags, lambda line: print(line, file=sys.stderr, flush=True))
    table = as_text(*results_table(found["results"]), left=2)
    return Answer(found, [table, f"\nreport: {flags.out / 'report.md'}"])


VERBS = {"optim list": (ListFlags, list_optimizers), "optim compare": (CompareConfig, compare)}

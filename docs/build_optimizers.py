"""What docs/optimizers/*.md say of optimizers' settings, from the registry: `python docs/build_optimizers.py`.

A family's page has a section for each optimizer, whose title ends with its name as code. The section's line that ends
with `Source: ...` has facts. A block `<!-- meanings -->` is a table of the family's settings. The site's reference has
all settings of all optimizers. A test compares pages and registry.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.optim import list_optimizers, optimizer_spec
from danalab.optim.registry import OptimizerSpec

FAMILIES = Path(__file__).parent / "optimizers"

HOW = ("foreach", "fused", "capturable", "differentiable", "maximize", "stochastic_rounding")
"""Settings that change how a step is computed."""
SHARED = (
    "weight_decay",
    "wd_ts",
    "omega",
    "horizon",
    "decay_bound",
    "cautious_decay",
    "scaled_decay",
    "state_dtype",
    "eps",
)
"""Settings that docs/optimizers.md explains, as it explains HOW."""

_TITLE = re.compile(r"^##+ [^\n]*: `(\S+)`$", re.MULTILINE)
_FACTS = re.compile(
    r"(?P<before>^##+ [^\n]*: `(?P<name>\S+)`\n(?:(?!^##)(?![^\n]*Source: )[^\n]*\n)*)[^\n]*Source: [^\n]*",
    re.MULTILINE,
)
_MEANINGS = re.compile(r"<!-- meanings -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> dict[Path, str]:
    """The pages as they stand."""
    return {page: page.read_text(encoding="utf-8") for page in sorted(FAMILIES.glob("*.md"))}


def refresh(texts: Mapping[Path, str]) -> dict[Path, str]:
    """The pages with all facts and tables written again."""
    titles = [name for text in texts.values() for name in _TITLE.findall(text)]
    told = [match["name"] for text in texts.values() for match in _FACTS.finditer(text)]
    for what, found in (("section", titles), ("line that ends with 'Source: ...'", told)):
        missing, unknown = sorted({*list_optimizers()} - {*found}), sorted({*found} - {*list_optimizers()})
        if missing or unknown or len({*found}) < len(found):
            raise UserError(
                f"docs/optimizers: each optimizer needs one {what}; missing: {', '.join(missing) or 'none'};"
                f" unknown: {', '.join(unknown) or 'none'}"
            )

    def page(text: str) -> str:
        text = _FACTS.sub(lambda match: match["before"] + facts(optimizer_spec(match["name"])), text)
        table = "\n".join(["<!-- meanings -->", "", *meanings(_TITLE.findall(text)), "", "<!-- end -->"])
        return _MEANINGS.sub(lambda _: table, text)

    return {name: page(text) for name, text in texts.items()}


def meanings(names: list[str]) -> list[str]:
    """A table of the settings that optimizers share, but those of docs/optimizers.md: one row for equal meanings."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name in names:
        for setting, told in optimizer_spec(name).settings.items():
            if setting not in (*HOW, *SHARED):
                rows.setdefault((setting, told.help), {})[name] = told.default
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for (setting, meaning), defaults in sorted((key, row) for key, row in rows.items() if len(row) > 1):
        values = [_text(default) for default in defaults.values()]
        usual = max(values, key=values.count)
        other = [f"`{value}` of `{name}`" for name, value in zip(defaults, values, strict=True) if value != usual]
        of = f" (of {_who(list(defaults), names)})" if len(defaults) < len(names) else ""
        lines.append(f"| `{setting}` | {', '.join([f'`{usual}`', *other])} | {_cell(meaning)}{of} |")
    return lines


def _who(have: list[str], names: list[str]) -> str:
    rest = [name for name in names if name not in have]
    shown = rest if len(rest) < len(have) else have
    return ("all but " if shown is rest else "") + ", ".join(f"`{name}`" for name in shown)


def facts(spec: OptimizerSpec) -> str:
    """What a user must know of an optimizer besides its equation."""
    lines = {"none": ["No weight decay."], "independent": ["Weight decay is independent."]}.get(spec.decay, [])
    if spec.train_eval:
        lines.append("Call `optimizer.train()` before training and `optimizer.eval()` before evaluation and saving.")
    if spec.closure:
        lines.append("`step` needs a closure.")
    if spec.hessian:
        lines.append("It needs Hessian estimates: `hessian_is_due()`, `update_hessian()`.")
    if spec.advice:
        lines.append(f"Note: {spec.advice}.")
    if spec.aliases:
        lines.append(f"Also called {', '.join(f'`{alias}`' for alias in spec.aliases)}.")
    if spec.extra:
        lines.append(f"Needs `danalab[{spec.extra}]`.")
    lines.append(f"Source: {paper[0] if (paper := re.search(r'arXiv [^;]*', spec.reference)) else spec.reference}.")
    return " ".join(lines)


def table(spec: OptimizerSpec) -> list[str]:
    """All settings of an optimizer, for the site's reference."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | `{_text(told.default)}` | {_cell(told.help)} |" for name, told in spec.settings.items()]
    return lines


def _text(value: Any) -> str:
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for page, text in refresh(pages()).items():
        page.write_text(text, encoding="utf-8")
        print(f"refreshed {page}")

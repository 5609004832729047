"""The settings tables of docs/optimizers.md, generated from the registry: `python docs/build_optimizers.py`.

The page is written by hand, except for the text between `<!-- settings: NAME -->` and `<!-- end -->`, which this
replaces. A test compares page and registry.
"""

import re
from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.optim import list_optimizers, optimizer_spec
from danalab.optim.registry import OptimizerSpec

HOW = ("foreach", "fused", "capturable", "differentiable", "maximize", "stochastic_rounding")
"""Settings shared by most optimizers: explained once, not in every table."""

DECAY = {
    "independent": "independent: multiplied by the schedule factor lr / peak_lr only",
    "coupled": "coupled: multiplied by the learning rate",
    "none": "none",
}

_BLOCK = re.compile(r"<!-- settings: (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)
_BARE = re.compile(r"<!-- settings: \S+ -->\n(?!.*?<!-- end -->)", re.DOTALL)


def refresh(page: str) -> str:
    """The page with all tables regenerated."""
    if _BARE.search(page):
        raise UserError("docs/optimizers.md: a block '<!-- settings: NAME -->' has no '<!-- end -->'")
    places = [match["name"] for match in _BLOCK.finditer(page)]
    missing = [name for name in list_optimizers() if name not in places]
    unknown = [name for name in places if name not in list_optimizers()]
    if missing or unknown or len(set(places)) < len(places):
        raise UserError(
            f"docs/optimizers.md: no section for {', '.join(missing) or 'none'}; no optimizer for"
            f" {', '.join(unknown) or 'none'}; each needs one block '<!-- settings: NAME -->' ... '<!-- end -->'"
        )
    return _BLOCK.sub(lambda match: block(optimizer_spec(match["name"])), page)


def block(spec: OptimizerSpec) -> str:
    """The registry entry of an optimizer as Markdown, between its markers."""
    lines = [f"<!-- settings: {spec.name} -->", "", f"{spec.summary[0].upper()}{spec.summary[1:]}. {_facts(spec)}", ""]
    own = {name: setting for name, setting in spec.settings.items() if name not in HOW}
    if own:
        lines += ["| setting | default | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {_cell(setting.default)} | {_text(setting.help)} |" for name, setting in own.items()]
    shared = [f"`{name}`" for name in spec.settings if name in HOW]
    if shared:
        lines += ["", f"Also: {', '.join(shared)}."]
    return "\n".join([*lines, "", "<!-- end -->"])


def _facts(spec: OptimizerSpec) -> str:
    facts = [f"Weight decay is {DECAY[spec.decay]}."]
    if spec.log_time:
        facts.append("Logarithmic time: has `coefficients()`, `collect_stats()` and `update_rms()`.")
    if spec.train_eval:
        facts.append("Call `optimizer.train()` before training and `optimizer.eval()` before evaluation and saving.")
    if spec.closure:
        facts.append("`step` needs a closure.")
    if spec.hessian:
        facts.append("Needs Hessian estimates: `hessian_is_due()`, `update_hessian()`.")
    if not spec.per_parameter:
        facts.append("A statistic over all parameters couples them.")
    if spec.advice:
        facts.append(f"Note: {spec.advice}.")
    if spec.aliases:
        facts.append(f"Also called {', '.join(f'`{alias}`' for alias in spec.aliases)}.")
    if spec.extra:
        facts.append(f"Needs the extra: `pip install 'danalab[{spec.extra}]'`.")
    facts.append(f"Reference: {spec.reference}.")
    return " ".join(facts)


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _text(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    page = Path(__file__).with_name("optimizers.md")
    page.write_text(refresh(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"refreshed {page}")

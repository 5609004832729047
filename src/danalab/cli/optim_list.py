"""`danalab optim list`: the optimizers, their capabilities and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.optim.registry.spec import OptimizerSpec

ARCHITECTURES = ("enoki", "qwen3")
"""Architectures with fitted learning-rate laws."""


@dataclass(frozen=True, kw_only=True)
class ListFlags:
    opt: str | None = None
    """Show one optimizer with all its settings."""
    json: bool = False
    """Print one JSON object on standard output."""


def list_optimizers(flags: ListFlags) -> None:
    """The optimizers and their capabilities, or one of them with settings, defaults, learning rate and reference."""
    import json

    from danalab.optim import list_optimizers as names
    from danalab.optim import optimizer_spec

    specs = [optimizer_spec(name) for name in ([flags.opt] if flags.opt else names())]
    if flags.json:
        print(json.dumps({"optimizers": [as_dict(spec) for spec in specs]}))
    elif flags.opt is None:
        _print_table(specs)
    else:
        _print_one(specs[0])


def as_dict(spec: OptimizerSpec) -> dict[str, Any]:
    """The registry entry of an optimizer, for JSON."""
    from danalab.optim.registry.spec import kind_of

    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "summary": spec.summary,
        "reference": spec.reference,
        "advice": spec.advice or None,
        "decay": spec.decay,
        "log_time": spec.log_time,
        "elementwise": spec.elementwise,
        "per_parameter": spec.per_parameter,
        "train_eval": spec.train_eval,
        "hessian": spec.hessian,
        "closure": spec.closure,
        "extra": spec.extra,
        "modes": _modes(spec),
        "learning_rate": {arch: _rate(arch, spec.name) for arch in ARCHITECTURES},
        "settings": {
            name: {"default": _plain(what.default), "kind": kind_of(what), "help": what.help}
            for name, what in spec.settings.items()
        },
    }


def _print_table(specs: list[OptimizerSpec]) -> None:
    rows: list[tuple[str, ...]] = [("name", "decay", "shard", "zero", "fsdp", "tp", "needs", "summary")]
    for spec in specs:
        modes = _modes(spec)
        able = ["yes" if mode in modes else "-" for mode in ("zero", "fsdp", "fsdp+tp")]
        shard = "elements" if spec.elementwise else "tensors" if spec.per_parameter else "none"
        rows.append((spec.name, spec.decay, shard, *able, ", ".join(_needs(spec)) or "-", spec.summary))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print(
        "\ndecay: weight decay is multiplied by the learning rate (coupled), or only by the schedule (independent)."
        "\nshard: the update is elementwise (elements), needs whole tensors, or couples all parameters (none)."
        "\nneeds: an extra (pip install 'danalab[EXTRA]'); eval: evaluates at other weights than it trains;"
        " hessian: a periodic pass with sampled labels."
        "\n\ndanalab optim list --opt NAME shows the settings of one; all of them are flags of danalab train."
    )


def _print_one(spec: OptimizerSpec) -> None:
    from danalab.optim.registry.spec import kind_of, written

    print(f"{spec.name}: {spec.summary}\nreference: {spec.reference}")
    if spec.aliases:
        print(f"also called: {', '.join(spec.aliases)}")
    if spec.extra:
        print(f"needs: pip install 'danalab[{spec.extra}]'")
    print(f"weight decay: {_DECAY[spec.decay]}")
    for arch in ARCHITECTURES:
        rule = _rate(arch, spec.name)
        print(f"learning rate on {arch}: {rule['formula']}: {rule['source']}")
    print(f"parallel modes: {', '.join(_modes(spec))}")
    if spec.advice:
        print(f"note: {spec.advice}")
    print()
    width = max(map(len, spec.settings))
    for name, what in spec.settings.items():
        print(f"  {name:<{width}}  {kind_of(what):<8} {written(what.default):<14} {what.help}")


_DECAY = {
    "independent": "multiplied by the schedule factor only",
    "coupled": "multiplied by the learning rate",
    "none": "none",
}


def _needs(spec: OptimizerSpec) -> list[str]:
    needs = [spec.extra] if spec.extra else []
    flags = {"eval": spec.train_eval, "hessian": spec.hessian, "closure": spec.closure}
    return needs + [name for name, needed in flags.items() if needed]


def _modes(spec: OptimizerSpec) -> list[str]:
    from danalab.optim.distributed import MODES, why_not

    return [mode for mode in MODES if why_not(spec, mode) is None]


def _rate(arch: str, opt: str) -> dict[str, str]:
    from danalab.scaling.learning_rate import lr_law

    law, source = lr_law(arch, opt)
    formula = f"{law.a:.4g}" if law.d == 0 else f"{law.a:.4g} ({law.b:.3g} + P)^{law.d:.3g}"
    return {"formula": formula, "source": source}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""Optimizers: list them, compare them on small problems, draw their schedules, export one as a single file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.errors import UserError
from danalab.registry import Registry
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.optim.values import OptimizerSpec


ARCHITECTURES = ("enoki", "qwen3")
"""Architectures with fitted learning-rate laws."""


@dataclass(frozen=True, kw_only=True)
class ListFlags(JsonFlags):
    opt: PathText | None = None
    """Show one optimizer with all its settings."""


def list_optimizers(flags: ListFlags) -> None:
    """The optimizers and their capabilities; with --opt one of them: settings, defaults, learning rate, reference."""
    from danalab.optim import list_optimizers as names
    from danalab.optim import optimizer_spec

    specs = [optimizer_spec(name) for name in ([flags.opt] if flags.opt else names())]
    if flags.json:
        flags.print_json({"optimizers": [as_dict(spec) for spec in specs]})
    elif flags.opt is None:
        _print_table(specs)
    else:
        _print_one(specs[0])


def as_dict(spec: OptimizerSpec) -> dict[str, Any]:
    """The registry entry of an optimizer, for JSON."""
    from danalab.optim.values import kind_of

    plain = ("name", "summary", "reference", "decay", "log_time", "elementwise", "per_parameter", "train_eval",
             "hessian", "closure", "extra")  # fmt: skip
    return {
        **{name: getattr(spec, name) for name in plain},
        "aliases": list(spec.aliases),
        "advice": spec.advice or None,
        "modes": _modes(spec),
        "learning_rates_to_try": _rates(spec),
        "learning_rate": {arch: _rate(arch, spec.name) for arch in ARCHITECTURES},
        "settings": {
            name: {"default": what.default, "kind": kind_of(what), "help": what.help}
            for name, what in spec.settings.items()
        },
    }


def _print_table(specs: list[OptimizerSpec]) -> None:
    rows: list[tuple[str, ...]] = [("name", "decay", "shard", "zero", "fsdp", "tp", "rates to try", "needs", "summary")]
    for spec in specs:
        modes = _modes(spec)
        able = ["yes" if mode in modes else "-" for mode in ("zero", "fsdp", "fsdp+tp")]
        shard = "elements" if spec.elementwise else "tensors" if spec.per_parameter else "none"
        needs = {"eval": spec.train_eval, "hessian": spec.hessian, "closure": spec.closure}
        needed = ", ".join([*filter(None, [spec.extra]), *(name for name in needs if needs[name])]) or "-"
        rows.append((spec.name, spec.decay, shard, *able, _shown_rates(spec), needed, spec.summary))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print(
        "\ndecay: weight decay is multiplied by the learning rate (coupled), or only by the schedule (independent)."
        "\nshard: the update is elementwise (elements), needs whole tensors, or couples all parameters (none)."
        "\nrates to try: for models with 0.05 to 1 M parameters; danalab sweep --find-lr searches from them"
        "\nneeds: an extra (pip install 'danalab[EXTRA]'); eval: evaluates at other weights than it trains;"
        " hessian: a periodic pass with sampled labels."
        "\n\ndanalab optim list --opt NAME shows the settings of one; all of them are flags of danalab train."
    )


def _print_one(spec: OptimizerSpec) -> None:
    from danalab.optim.values import kind_of, written

    print(f"{spec.name}: {spec.summary}\nreference: {spec.reference}")
    if spec.aliases:
        print(f"also called: {', '.join(spec.aliases)}")
    if spec.extra:
        print(f"needs: pip install 'danalab[{spec.extra}]'")
    print(f"weight decay: {_DECAY[spec.decay]}")
    print(f"learning rates to try on a small model: {_shown_rates(spec)}")
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


def _rates(spec: OptimizerSpec) -> tuple[float, ...]:
    from danalab.scaling.optimizers import rates_to_try

    return rates_to_try(spec.name)


def _shown_rates(spec: OptimizerSpec) -> str:
    return ", ".join(f"{rate:.2g}" for rate in _rates(spec))


_DECAY = {"independent": "times the schedule factor only", "coupled": "times the learning rate", "none": "none"}


def _modes(spec: OptimizerSpec) -> list[str]:
    from danalab.optim.distributed import MODES, why_not

    return [mode for mode in MODES if why_not(spec, mode) is None]


def _rate(arch: str, opt: str) -> dict[str, str]:
    from danalab.scaling.learning_rate import lr_law

    law, source = lr_law(arch, opt)
    formula = f"{law.a:.4g}" if law.d == 0 else f"{law.a:.4g} ({law.b:.3g} + P)^{law.d:.3g}"
    return {"formula": formula, "source": source}


@dataclass(frozen=True, kw_only=True)
class OptimizerFileFlags(JsonFlags):
    name: Positional[str]
    """An optimizer of the Dana or the Muon family, or adamw-decaying-wd."""
    style: str = "torch"
    """Whose trainer it is for: torch: any loop; nanochat: its groups with a kind, the rates and decay that it sets;
    track3: the optimizer part of a track-3 script of modded-nanogpt, with warm-up and cooldown."""
    out: Path | None = None
    """File to write; default: print it."""


def export_optimizer(flags: OptimizerFileFlags) -> None:
    """One Python file of an optimizer that needs torch alone, made from the source of its rule; at most 200 lines."""
    from danalab.files import write_atomically
    from danalab.optim.export import export

    text = export(flags.name, flags.style)
    if flags.out is not None:
        if flags.out.exists():
            raise UserError(f"{flags.out} exists already; --out must name a new file")
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(flags.out, text)
    out = None if flags.out is None else str(flags.out)
    if not flags.print_json({"optimizer": flags.name, "file": out, **({"source": text} if out is None else {})}):
        print(text if out is None else f"written: {out}", end="" if out is None else "\n")


SUBVERBS: Registry[tuple[type, Callable[[Any], int | None]]] = Registry("optim command")
SUBVERBS.add("list", (ListFlags, list_optimizers))
SUBVERBS.add("export", (OptimizerFileFlags, export_optimizer))

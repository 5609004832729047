"""The optimizers with their hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ListFlags:
    opt: str | None = None
    """Show one optimizer with all its settings."""
    json: bool = False
    """Print one JSON object on standard output."""


def list_optimizers(flags: ListFlags) -> None:
    """The optimizers by name, or one of them with its settings, defaults and reference."""
    import json

    from danalab.optim import list_optimizers as names
    from danalab.optim import optimizer_spec

    specs = [optimizer_spec(name) for name in ([flags.opt] if flags.opt else names())]
    if flags.json:
        print(json.dumps({"optimizers": [_as_dict(spec) for spec in specs]}))
    elif flags.opt is None:
        for spec in specs:
            print(f"{spec.name:<20} {spec.summary}")
        print("\ndanalab optim list --opt NAME shows the settings of one.")
    else:
        (spec,) = specs
        print(f"{spec.name}: {spec.summary}\nreference: {spec.reference}")
        if spec.aliases:
            print(f"also called: {', '.join(spec.aliases)}")
        print(f"weight decay: {_DECAY[spec.decay]}\n")
        for name, setting in spec.settings.items():
            print(f"  {name:<20} {_plain(setting.default)!s:<14} {setting.help}")


_DECAY = {
    "independent": "times the schedule factor alone",
    "coupled": "times the learning rate",
    "none": "none",
}


def _as_dict(spec) -> dict:
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "summary": spec.summary,
        "reference": spec.reference,
        "decay": spec.decay,
        "log_time": spec.log_time,
        "settings": {name: {"default": _plain(s.default), "help": s.help} for name, s in spec.settings.items()},
    }


def _plain(value):
    """A default as it is written on the command line."""
    return list(value) if isinstance(value, tuple) else value


SUBVERBS = {"list": (ListFlags, list_optimizers)}

"""Check a training run before it is launched: data, loss at step 0, memory, resume, throughput, overfitting.

With --coordinates: whether activations keep their size as the width grows (`danalab_annexes.commands.preflight`).
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from danalab.errors import UserError
from danalab.train.config.fields import Count
from danalab.train.config.train_config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from danalab_annexes.commands.preflight import Coordinates


@dataclass(frozen=True, kw_only=True)
class Flags(TrainConfig):
    title: ClassVar[str] = ""

    check_steps: Annotated[int, Ge(2)] = 6
    """First steps of the run to train, twice: in one job, and in two of half the steps."""
    overfit_steps: Count = 100
    """Steps on one sequence, which must be learned by heart."""
    coordinates: bool = False
    """Check instead that activations stay within a factor of 2 from the narrowest of --widths to the widest."""
    widths: tuple[Count, ...] = (32, 64, 128, 256, 512)
    """Widths of --coordinates; all have heads of --head-dim, default half the narrowest width."""
    figure: Path = Path("coordinates.svg")
    """Figure of --coordinates: .svg or .png."""


def run(flags: Flags) -> int:
    """Check a training run before it is launched; takes the flags of danalab train. Exit code 1: a check failed."""
    from danalab_annexes.commands.preflight import check_run

    config = TrainConfig(**{field.name: getattr(flags, field.name) for field in fields(TrainConfig)})
    if flags.coordinates:
        return _check_coordinates(flags, config)
    found = []
    for verdict in check_run(config, steps=flags.check_steps, overfit_steps=flags.overfit_steps):
        found.append(verdict)
        if not flags.json:
            print(f"{verdict.status.upper() if verdict.status == 'failed' else verdict.status:<8} "
                  f"{verdict.name:<9} {verdict.text}", flush=True)  # fmt: skip
    failed = sum(verdict.status == "failed" for verdict in found)
    if flags.json:
        print(json.dumps({"ready": not failed, "checks": [asdict(verdict) for verdict in found]}))
    else:
        print("ready to launch" if not failed else f"not ready: {failed} of {len(found)} checks failed")
    return 1 if failed else 0


def _check_coordinates(flags: Flags, config: TrainConfig) -> int:
    from danalab.report.figures import drawing
    from danalab_annexes.commands.preflight import FLAT, check_coordinates

    if flags.figure.suffix not in (".svg", ".png"):
        raise UserError(f"--figure {flags.figure}: it must end in .svg or .png")
    measured = check_coordinates(config, flags.widths)
    drawing.styled(_figure)(measured).savefig(flags.figure)
    ratios = measured.ratios()
    if flags.json:
        print(json.dumps({"flat": measured.is_flat, "ratios": ratios, **asdict(measured)}))
        return 0 if measured.is_flat else 1
    print(f"mean |activation| after {len(measured.sizes['logits'])} steps at the peak learning rate {measured.lr:.3g}")
    print(f"{'width':<10}" + "".join(f"{width:>9}" for width in measured.widths) + "   largest ratio, all steps")
    for name, rows in measured.sizes.items():
        print(f"{name:<10}" + "".join(f"{size:>9.3g}" for size in rows[-1]) + f"   {ratios[name]:.3g}")
    verdict = "flat" if measured.is_flat else "not flat"
    print(f"{config.parametrization}: {verdict} within {FLAT:g} x; {flags.figure}")
    return 0 if measured.is_flat else 1


def _figure(measured: "Coordinates") -> "Figure":
    """Sizes of activations against width, a line for each step: the first and last block, and the logits."""
    from danalab.report.figures import drawing

    names = list(measured.sizes)
    figure, places = drawing.panels(len(shown := [names[0], *names[-2:]] if len(names) > 2 else names))
    for axes, name in zip(places, shown, strict=True):
        rows = measured.sizes[name]
        for step, (row, color) in enumerate(zip(rows, drawing.shades(len(rows)), strict=True), 1):
            axes.plot(measured.widths, row, color=color, marker="o", markersize=2.5, label=f"step {step}")
        axes.set(title=name, xlabel="width", ylabel="mean |activation|")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    drawing.legend(figure)
    return figure

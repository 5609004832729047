"""The figure of `danalab bench resonance`: time, memory and decoding by length, and loss by tokens and by time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danalab.colors import MIXER_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"resonance": "o", "attention": "s"}


def resonance_figure(found: Mapping[str, Any]) -> "Figure":
    """Three panels of speed and, where the models were trained, two of what they learned."""
    from matplotlib.figure import Figure

    learned: Mapping[str, Any] | None = found.get("learning")
    figure = Figure(figsize=(12, 7.2 if learned else 3.8), layout="constrained")
    axes: Any = figure.subplot_mosaic("aabbcc;dddeee" if learned else "aabbcc")
    device = found["machine"].get("gpu") or found["machine"]["cpu"]
    shape = found["settings"]
    figure.suptitle(
        f"Resonance and attention of one size: {shape['n_layers']} x {shape['d_model']}, one row, {device}"
        " (above: random weights, speed only)" if learned else
        f"Resonance and attention of one size: {shape['n_layers']} x {shape['d_model']}, one row, {device}"
        " (random weights: speed only)",
        fontsize=11,
    )  # fmt: skip
    for name, color in MIXER_COLORS.items():
        rows = found["speed"][name]["rows"]
        exponent = found["speed"][name]["slope"]
        label = name if exponent is None else f"{name}: exponent {exponent:.2f}"
        _line(axes["a"], rows, "step_seconds", name, label)
        if all(row["peak_bytes"] is not None for row in rows):
            _line(axes["b"], [{**row, "mib": row["peak_bytes"] / 2**20} for row in rows], "mib", name, name)
        _line(axes["c"], [{**row, "ms": 1e3 * row["decode_seconds"]} for row in rows], "ms", name, name)
        runs: list[dict[str, Any]] = learned["models"][name]["runs"] if learned else []
        for number, run in enumerate(runs):
            again = f"_{name}" if number else name
            for panel, axis in (("d", "tokens"), ("e", "time")):
                points = [point for point in run["curve"] if point[axis] > 0]
                axes[panel].plot(
                    [point[axis] for point in points], [point["loss"] for point in points],
                    color=color, marker=MARKERS[name], markersize=3, linewidth=1.2, label=again,
                )  # fmt: skip
    _finish(axes["a"], "forward and backward", "context [tokens]", "seconds a step", log=True)
    _finish(axes["b"], "memory of a step", "context [tokens]", "highest, beyond the weights [MiB]", log=True)
    _finish(axes["c"], "decoding", "position [tokens]", "milliseconds a token")
    axes["c"].set_xscale("log", base=2)
    axes["c"].set_ylim(0, 1.3 * axes["c"].get_ylim()[1])
    lengths = [row["tokens"] for row in found["speed"]["resonance"]["rows"]]
    for panel in "abc":
        axes[panel].set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
    if learned:
        _finish(axes["d"], "trained alike: by tokens", "training tokens", "validation loss [nats a token]")
        _finish(axes["e"], "trained alike: by time", "training time [s]", "validation loss [nats a token]")
    return figure


def _line(axes: "Axes", rows: list[dict[str, Any]], key: str, name: str, label: str) -> None:
    axes.plot(
        [row["tokens"] for row in rows], [row[key] for row in rows],
        color=MIXER_COLORS[name], marker=MARKERS[name], markersize=5, linewidth=1.5, label=label,
    )  # fmt: skip


def _finish(axes: "Axes", title: str, x: str, y: str, *, log: bool = False) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif "tokens" in x:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)

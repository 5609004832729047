"""The figure of `danalab bench resonance`: time, memory and decoding by length, and loss by tokens and by time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from danalab.colors import MIXER_COLORS
from danalab.report.figures.drawing import LOSS, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {"resonance": "o", "attention": "s"}


@styled
def resonance_figure(found: Mapping[str, Any]) -> Figure:
    """Three panels of speed and, where the models were trained, two of what they learned."""
    learned: Mapping[str, Any] | None = found.get("learning")
    figure = Figure(figsize=(12, 7.2 if learned else 3.8))
    axes: Any = figure.subplot_mosaic("aabbcc;dddeee" if learned else "aabbcc")
    device, shape = found["machine"].get("gpu") or found["machine"]["cpu"], found["settings"]
    figure.suptitle(
        f"Resonance and attention of one size: {shape['n_layers']} x {shape['d_model']}, one row, {device} "
        f"({'above: random weights, speed only' if learned else 'random weights: speed only'})",
        fontsize=11,
    )
    for name in MIXER_COLORS:
        rows, exponent = found["speed"][name]["rows"], found["speed"][name]["slope"]
        tokens = [row["tokens"] for row in rows]
        label = name if exponent is None else f"{name}: exponent {exponent:.2f}"
        _line(axes["a"], tokens, [row["step_seconds"] for row in rows], name, label)
        if all(row["peak_bytes"] is not None for row in rows):
            _line(axes["b"], tokens, [row["peak_bytes"] / 2**20 for row in rows], name, name)
        _line(axes["c"], tokens, [1e3 * row["decode_seconds"] for row in rows], name, name)
        for number, run in enumerate(learned["models"][name]["runs"] if learned else []):
            for panel, axis in (("d", "tokens"), ("e", "time")):
                points = [point for point in run["curve"] if point[axis] > 0]
                x, y = [point[axis] for point in points], [point["loss"] for point in points]
                _line(axes[panel], x, y, name, f"_{name}" if number else name, size=3)
    lengths = [row["tokens"] for row in found["speed"]["resonance"]["rows"]]
    for panel, title, y in (
        ("a", "forward and backward", "seconds per step"),
        ("b", "memory of a step", "highest, beyond the weights [MiB]"),
        ("c", "decoding", "milliseconds/token"),
    ):
        axes[panel].set(title=title, ylabel=y, xlabel="position [tokens]" if panel == "c" else "context [tokens]")
        axes[panel].set_xscale("log", base=2)
        axes[panel].set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
        if panel != "c" and axes[panel].lines:
            axes[panel].set_yscale("log")
            plain(axes[panel].yaxis)
    axes["c"].set_ylim(0, 1.3 * axes["c"].get_ylim()[1])
    if learned:
        axes["d"].set(title="trained alike: by tokens", xlabel="training tokens", ylabel=LOSS)
        axes["e"].set(title="trained alike: by time", xlabel="training time [s]", ylabel=LOSS)
    for each in axes.values():
        if each.get_legend_handles_labels()[0]:
            each.legend()
    return figure


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], name: str, label: str, size: float = 5) -> None:
    axes.plot(x, y, color=MIXER_COLORS[name], marker=MARKERS[name], markersize=size, linewidth=1.4, label=label)

"""The prediction for a spectrum, compared with measured language-model curves."""

from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from danalab.colors import optimizer_color
from danalab.theory.exponents import FAMILIES, CurvePrediction
from danalab.theory.measured import MeasuredComparison
from danalab.theory.studies.study import LABELS, Study, canvas, label


def compute(prediction: CurvePrediction, report: MeasuredComparison | None = None, **settings: Any) -> Study:
    """The prediction, and the comparison with measured curves if any, as a study."""
    times = np.geomspace(1, prediction.curves["sgd"].t[-1], 200)
    arrays = {"lam": prediction.spectrum.lam, "rho": prediction.spectrum.rho, "t": times}
    arrays.update({f"risk_{f}": prediction.curves[f].at(times) for f in FAMILIES})
    findings: dict[str, Any] = prediction.as_dict()
    if report is not None:
        findings["measured"] = {
            "note": "heuristic: a language model's loss is not quadratic; only the ratio of exponents is compared",
            "axis": report.axis,
            "common_limit": report.fit.limit,
            "r2": report.fit.r2,
            "baseline": report.curves[report.baseline].name,
            "rows": [asdict(row) for row in report.rows],
            "amplitudes": report.fit.amplitudes,
        }
        for i, (x, y) in enumerate(report.windows):
            arrays[f"measured_{i}"] = np.stack([x, y])
    return Study("predict", arrays, settings, findings, draw_figure)


def draw_figure(study: Study) -> Figure:
    """Spectrum, predicted curves, and the measured ones if there are any."""
    f = study.findings
    measured = f.get("measured")
    figure, axes = canvas(1, 3 if measured else 2, 5.2, 4.3)
    spectrum, curves = axes[0][:2]
    lam = study.arrays["lam"]
    rank = np.arange(1, len(lam) + 1)
    spectrum.plot(rank, lam, color="#2171b5", marker="o", ms=3, lw=1, label="eigenvalues")
    middle = len(lam) // 4
    law = lam[middle] * (rank / rank[middle]) ** (-2.0 * f["alpha"])
    windows = f["alpha_by_window"]
    spread = f" ({windows[0]:.2f} at the head, {windows[1]:.2f} in the tail)" if windows else ""
    spectrum.plot(rank, law, color="black", lw=1, ls=":", label=f"j^(-2 alpha), alpha = {f['alpha']:.2f}{spread}")
    title, floor = f"spectrum: phase {f['phase']}, beta = {f['beta']:.3f}", 0.05 * float(lam[-1])
    label(spectrum, title, "rank j", "eigenvalue / largest", "lower left", ylim=(floor, None))
    for family in FAMILIES:
        name = f"{LABELS[family]}: t^-{f['time_exponents'][family]:.2f}"
        curves.plot(study.arrays["t"], study.arrays[f"risk_{family}"], color=optimizer_color(family), label=name)
    title = f"predicted on this spectrum, kappa = {f['kappa']:.2f}"
    label(curves, title, "steps t", "population risk P (least squares)", "lower left")
    if measured:
        _draw_measured(axes[0][2], study)
    return figure


def _draw_measured(panel: Axes, study: Study) -> None:
    m = study.findings["measured"]
    rows = m["rows"]
    unit = max(float(study.arrays[f"measured_{i}"][0, -1]) for i in range(len(rows)))
    base = next(row["exponent"] for row in rows if row["name"] == m["baseline"])
    for i, (row, amplitude) in enumerate(zip(rows, m["amplitudes"], strict=True)):
        x, loss = study.arrays[f"measured_{i}"]
        color = optimizer_color(row["opt"])
        name = f"{row['name']}: ratio {row['ratio_measured']:.2f}"
        panel.plot(x, loss - m["common_limit"], color=color, marker="o", ms=3, lw=1, label=name)
        if row["ratio_predicted"] is None:
            continue
        # Through the curve's middle, with the theory's exponent.
        center = float(np.sqrt(x[0] * x[-1]))
        level = amplitude * (center / unit) ** -row["exponent"]
        predicted = level * (x / center) ** (-base * row["ratio_predicted"])
        panel.plot(x, predicted, color=color, lw=1.2, ls="--")
    panel.plot([], [], color="black", lw=1.2, ls="--", label="slope by theory (heuristic)")
    loss = f"val loss - {m['common_limit']:.3f} [nats/token]"
    label(panel, "measured; the theory is a heuristic here", m["axis"], loss)
    panel.xaxis.set_minor_formatter(NullFormatter())
    shortest = min(float(study.arrays[f"measured_{i}"][0, 0]) for i in range(len(rows)))
    decades = 10.0 ** np.arange(np.floor(np.log10(shortest)), np.log10(unit) + 1)
    ticks = [f * x for x in decades for f in ((1, 2, 5) if len(decades) < 4 else (1,)) if shortest <= f * x <= unit]
    panel.set_xticks(ticks, [f"{x:.0e}" for x in ticks])
    panel.legend(loc="lower left", fontsize=8)

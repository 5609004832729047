"""Colours of a page in light and dark mode, and the same for the colours of its figures."""

from collections.abc import Iterable, Sequence

from danalab.report.figures.drawing import INK, LINE, SOFT

LIGHT = {"ink": "#1f2328", "soft": "#656d76", "paper": "#ffffff", "line": "#d8dee4", "card": "#f6f8fa"}
DARK = {"ink": "#e6edf3", "soft": "#8d96a0", "paper": "#0f1318", "line": "#2d333b", "card": "#161b22"}
MIN_CONTRAST = 4.0
"""Of coloured lines against the dark page."""
_NAMES = {INK: "ink", "#000000": "ink", SOFT: "soft", LINE: "line", "#ffffff": "paper"}
"""Colours of figures that are colours of the page."""


def variable(color: str) -> str:
    """The CSS variable for a colour of a figure, "#rrggbb" in lower case; it changes between light and dark mode."""
    return f"var(--{_NAMES[color]})" if color in _NAMES else f"var(--c{color[1:]})"


def css_variables(colors: Iterable[str]) -> str:
    """The rules that define the page's colours and `colors` in both modes."""

    def rules(base: dict[str, str], dark: bool) -> str:
        own = {f"c{c[1:]}": brightened(c) if dark else c for c in sorted(set(colors) - set(_NAMES))}
        return " ".join(f"--{name}: {value};" for name, value in {**base, **own}.items())

    return (
        f":root {{ color-scheme: light dark; {rules(LIGHT, False)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {rules(DARK, True)} }} }}"
    )


def brightened(color: str) -> str:
    """The colour, mixed with white until it has enough contrast on the dark page."""
    channels, paper = _channels(color), _channels(DARK["paper"])
    mixed = channels
    for step in range(21):
        mixed = [round(c + (255 - c) * step / 20) for c in channels]
        if _contrast(mixed, paper) >= MIN_CONTRAST:
            break
    return "#" + "".join(f"{c:02x}" for c in mixed)


def _channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def _contrast(a: Sequence[int], b: Sequence[int]) -> float:
    """Contrast of two colours by WCAG 2."""

    def luminance(color: Sequence[int]) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)

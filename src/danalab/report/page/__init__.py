"""One self-contained HTML page: templates, palette for light and dark, inline SVG."""

import functools
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from danalab.colors import INK, LINE, SOFT
from danalab.report.figures.drawing import svg_text

REM_PER_INCH = 6.6  # width of figures on the page
MIN_REM_PER_INCH = 4.0  # width of figures on phones: narrower, their text cannot be read, so they scroll
PHONE_INCHES = 5.5  # width of a figure that a phone of 390 pixels shows whole

_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_GROUP = re.compile(r'<g id="[^"]*"')
_SHAPE = re.compile(r'<path id="(?P<id>[^"]+)"[^>]*/>')
"""Parts of an SVG: its origin, names of groups that nothing refers to, and shapes that are used by their names."""
_COLOR = re.compile(r"(?<=: )#[0-9a-fA-F]{6}(?=[;\"])")
"""Colours in the style attributes of an SVG."""


@dataclass
class Page:
    """A page that grows from top to bottom; `render` gives the HTML."""

    title: str
    lead: str
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _sections: list[tuple[str, str]] = field(default_factory=list)
    _colors: set[str] = field(default_factory=set)
    _shapes: dict[str, str] = field(default_factory=dict)

    def heading(self, text: str, anchor: str | None = None) -> None:
        """A section's heading; with an anchor it can be linked to, and is listed at the top."""
        if anchor is not None:
            self._sections.append((anchor, text))
        self._add("heading", level=2, text=text, anchor=anchor)

    def subheading(self, text: str, anchor: str | None = None) -> None:
        """A heading within a section."""
        self._add("heading", level=3, text=text, anchor=anchor)

    def paragraph(self, text: str) -> None:
        self._add("paragraph", text=text)

    def bullets(self, items: Sequence[tuple[str, str]]) -> None:
        """A list of (name, text)."""
        self._add("bullets", lines=items)

    def cards(self, cards: Sequence[tuple[str, str, Sequence[str], str]]) -> None:
        """Answers side by side: (name, answer, further lines, colour)."""
        self._add("cards", cards=[
            {"name": name, "answer": answer, "lines": lines, "color": self._color(color),
             "is_words": not any(map(str.isdigit, answer))}
            for name, answer, lines, color in cards
        ])  # fmt: skip

    def figure(
        self, figure: Figure, caption: str, files: Sequence[tuple[str, str]] = (), svg: str | None = None
    ) -> None:
        """A figure as inline SVG; its caption is also its description for screen readers."""
        # Narrow figures stay as wide as they are drawn: text keeps one size over the page.
        width = figure.get_figwidth()
        style = f"max-width: {width * REM_PER_INCH:.1f}rem; --least: {width * MIN_REM_PER_INCH:.1f}rem"
        head = f'<svg role="img" aria-label="{html.escape(caption, quote=True)}" style="{style}" '
        markup = self._without_repeats(svg or svg_text(figure)).replace("<svg ", head, 1)
        markup = _COLOR.sub(lambda match: self._color(match.group()), markup)
        self._add("figure", svg=Markup(markup), caption=caption, files=files, is_wide=width > PHONE_INCHES)

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], mark: Callable[[str], str] | None = None
    ) -> None:
        """A table; wide ones scroll on their own. `mark`: colour of the dot before the first cell, by its text."""
        columns = [
            {"heading": heading, "is_text": i > 0 and all(_is_words(row[i]) for row in rows)}
            for i, heading in enumerate(headings)
        ]
        marked = [{"cells": row, "color": None if mark is None else self._color(mark(row[0]))} for row in rows]
        self._add("table", columns=columns, rows=marked)

    def samples(self, columns: Sequence[str], rows: Sequence[tuple[str, str, Sequence[tuple[str, bool]]]]) -> None:
        """A grid of texts: of each row (title, remark, (text, whether it is right) of each column)."""
        self._add("samples", columns=columns, rows=rows)

    @contextmanager
    def fold(self, summary: str) -> Iterator[None]:
        """What is added inside is folded away behind `summary`."""
        self._add("fold", text=summary)
        yield
        self._add("unfold")

    def verbatim(self, text: str) -> None:
        """Text in a fixed-width font: a sample, a command."""
        self._add("verbatim", text=text)

    def render(self) -> str:
        return _environment().get_template("page.html").render(
            title=self.title, lead=self.lead, sections=self._sections, blocks=self._blocks,
            palette=Markup(css_variables(self._colors)),
        )  # fmt: skip

    def _add(self, kind: str, **block: Any) -> None:
        self._blocks.append({"kind": kind, **block})

    def _without_repeats(self, svg: str) -> str:
        """An SVG without the glyphs and markers that an earlier figure of the page defines already."""

        def once(match: re.Match[str]) -> str:
            if self._shapes.get(match["id"]) == match.group():
                return ""
            self._shapes[match["id"]] = match.group()
            return match.group()

        return _SHAPE.sub(once, _GROUP.sub("<g", _METADATA.sub("", svg)))

    def _color(self, color: str) -> str:
        self._colors.add(color.lower())
        return variable(color.lower())


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def _is_words(cell: str) -> bool:
    return bool(cell) and not any(character.isdigit() for character in cell[:2]) and cell != "-"


LIGHT = {"ink": "#1f2328", "soft": "#656d76", "paper": "#ffffff", "line": "#d8dee4", "card": "#f6f8fa"}
DARK = {"ink": "#e6edf3", "soft": "#8d96a0", "paper": "#0f1318", "line": "#2d333b", "card": "#161b22"}
MIN_CONTRAST = 4.0  # of coloured lines against the dark page
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

    def luminance(color: Sequence[int]) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)

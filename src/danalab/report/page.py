"""One self-contained HTML page: figures inside, no script, no network; for light, dark, paper and telephones."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from danalab.report.figures.drawing import INK, LINE, SOFT, svg_text
from danalab.report.tables.links import Linked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LIGHT = {"ink": "#1f2328", "soft": "#656d76", "paper": "#ffffff", "line": "#d8dee4", "card": "#f6f8fa"}
_DARK = {"ink": "#e6edf3", "soft": "#8d96a0", "paper": "#0f1318", "line": "#2d333b", "card": "#161b22"}
REM_AN_INCH = 6.6
"""Width of figures on the page."""
LEAST_CONTRAST = 4.0
"""Of coloured lines against the dark page."""

_STYLE = """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 62rem; padding: 2.6rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .5rem; font-weight: 650; }
h2 { font-size: 1.25rem; letter-spacing: -.01em; margin: 3rem 0 .8rem; padding-top: .9rem; font-weight: 620;
  border-top: 1px solid var(--line); scroll-margin-top: 1rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; font-weight: 620; }
p { margin: .5rem 0; max-width: 46rem; } p.lead { color: var(--soft); font-size: 1.05rem; margin: 0 0 1rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: 1.4rem 0 0; }
nav a { color: var(--soft); text-decoration: none; } nav a:hover { color: var(--ink); text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13.5rem, 1fr)); gap: .9rem; margin: 1.4rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1.1rem 1rem;
  border-top: 3px solid var(--mark, var(--line)); break-inside: avoid; }
.card b { display: block; font-size: 1.65rem; line-height: 1.25; font-weight: 640; letter-spacing: -.02em;
  margin: .1rem 0 .35rem; font-variant-numeric: tabular-nums; }
.card b.words { font-size: 1.25rem; color: var(--soft); padding: .2rem 0; }
.card span { display: block; font-size: .86rem; line-height: 1.45; color: var(--soft); }
.card span:first-child { color: var(--ink); font-weight: 600; font-size: .95rem; }
figure { margin: 1.4rem 0 1.8rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; margin: 0 auto; fill: var(--ink); }
figure > .scroll { padding-bottom: .2rem; }
figcaption { color: var(--soft); font-size: .88rem; line-height: 1.5; margin-top: .5rem; max-width: 46rem; }
figcaption a { margin-left: .5rem; white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; line-height: 1.4; font-variant-numeric: tabular-nums;
  margin: .8rem 0; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; max-width: 8rem; }
th, td { padding: .38rem .9rem .38rem 0; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th:last-child, td:last-child { padding-right: 0; }
td.text, th.text { text-align: left; }
.dot { display: inline-block; width: .62em; height: .62em; border-radius: 50%; margin-right: .5em;
  background: var(--mark); }
ul { padding-left: 1.2rem; margin: .5rem 0; max-width: 46rem; } li { margin: .2rem 0; }
ul.links { columns: 18rem; font-size: .9rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--soft); }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .18em; }
td a { text-decoration-color: var(--line); } td a:hover { text-decoration-color: var(--ink); }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; overflow-x: auto;
  white-space: pre-wrap; font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; }
@media (max-width: 40rem) { body { padding-top: 1.4rem; } h1 { font-size: 1.5rem; } figure svg { min-width: 34rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav, figcaption a { display: none; }
  h2 { break-after: avoid; margin-top: 1.6rem; } tr { break-inside: avoid; } a { text-decoration: none; } }
"""


@dataclass
class Page:
    """A page that grows from top to bottom; `render` gives the HTML."""

    title: str
    lead: str
    _parts: list[str] = field(default_factory=list)
    _sections: list[tuple[str, str]] = field(default_factory=list)
    _colors: set[str] = field(default_factory=set)
    _shapes: dict[str, str] = field(default_factory=dict)

    def heading(self, text: str, anchor: str | None = None) -> None:
        """A section's heading; with an anchor it can be linked to, and is listed at the top."""
        if anchor is not None:
            self._sections.append((anchor, text))
        identity = "" if anchor is None else f' id="{_quoted(anchor)}"'
        self._parts.append(f"<h2{identity}>{html.escape(text)}</h2>")

    def subheading(self, text: str, anchor: str | None = None) -> None:
        """A heading within a section."""
        identity = "" if anchor is None else f' id="{_quoted(anchor)}"'
        self._parts.append(f"<h3{identity}>{html.escape(text)}</h3>")

    def paragraph(self, text: str) -> None:
        """Plain text."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def bullets(self, items: Sequence[tuple[str, str]]) -> None:
        """A list of (what, what about it)."""
        lines = "".join(f"<li><strong>{html.escape(a)}</strong>: {html.escape(b)}</li>" for a, b in items)
        self._parts.append(f"<ul>{lines}</ul>")

    def cards(self, cards: Sequence[tuple[str, str, Sequence[str], str]]) -> None:
        """Answers side by side: (whose, the answer, what to know about it, colour)."""
        self._parts.append('<div class="cards">' + "".join(map(self._card, cards)) + "</div>")

    def _card(self, card: tuple[str, str, Sequence[str], str]) -> str:
        whose, answer, lines, color = card
        kind = "" if any(character.isdigit() for character in answer) else ' class="words"'
        rest = "".join(f"<span>{html.escape(line)}</span>" for line in lines)
        return (
            f'<div class="card" style="--mark: {self._color(color)}"><span>{html.escape(whose)}</span>'
            f"<b{kind}>{html.escape(answer)}</b>{rest}</div>"
        )

    def figure(
        self, figure: Figure, caption: str, files: Sequence[tuple[str, str]] = (), svg: str | None = None
    ) -> None:
        """A figure as inline SVG, described by its caption for those who cannot see it.

        Args:
            files: (text, address) of the same figure to take along.
            svg: its `svg_text`, where that is known already.
        """
        # Narrow figures stay as wide as they are drawn: text keeps one size over the page.
        width = f"max-width: {figure.get_figwidth() * REM_AN_INCH:.1f}rem"
        head = f'<svg role="img" aria-label="{_quoted(caption)}" style="{width}" '
        markup = self._slim(svg or svg_text(figure)).replace("<svg ", head, 1)
        markup = _COLOR.sub(lambda match: self._color(match.group()), markup)
        links = "".join(f'<a href="{_quoted(url)}">{html.escape(text)}</a>' for text, url in files)
        self._parts.append(
            f'<figure><div class="scroll" tabindex="0">{markup}</div>'
            f"<figcaption>{html.escape(caption)}{links}</figcaption></figure>"
        )

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], mark: Callable[[str], str] | None = None
    ) -> None:
        """A table; wide ones scroll on their own.

        Args:
            mark: colour of the dot before the first cell of a row, by its text.
        """
        text = [column > 0 and all(_is_words(row[column]) for row in rows) for column in range(len(headings))]
        kinds = [' class="text"' if words else "" for words in text]
        head = "".join(f'<th scope="col"{kind}>{html.escape(h)}</th>' for h, kind in zip(headings, kinds, strict=True))
        body = ""
        for row in rows:
            dot = "" if mark is None else f'<i class="dot" style="--mark: {self._color(mark(row[0]))}"></i>'
            cells = "".join(
                f"<td{kind}>{dot if i == 0 else ''}{_cell(cell)}</td>"
                for i, (cell, kind) in enumerate(zip(row, kinds, strict=True))
            )
            body += f"<tr>{cells}</tr>"
        self._parts.append(
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def fold(self, summary: str) -> Callable[[], None]:
        """Begin a part that is folded away; call what is returned where it ends."""
        self._parts.append(f"<details><summary>{html.escape(summary)}</summary>")
        return lambda: self._parts.append("</details>")

    def links(self, targets: Sequence[tuple[str, str]]) -> None:
        """A list of (text, address)."""
        items = [f'<li><a href="{_quoted(url)}">{html.escape(text)}</a></li>' for text, url in targets]
        self._parts.append(f'<ul class="links">{"".join(items)}</ul>')

    def verbatim(self, text: str) -> None:
        """Text as it is: a sample, a command."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def render(self) -> str:
        """The whole page."""
        title = html.escape(self.title)
        links = "".join(f'<a href="#{_quoted(anchor)}">{html.escape(text)}</a>' for anchor, text in self._sections)
        nav = f"<nav>{links}</nav>" if links else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{self._palette()}{_STYLE}</style></head><body><main>"
            f'<h1>{title}</h1><p class="lead">{html.escape(self.lead)}</p>{nav}'
            + "\n".join(self._parts)
            + "</main></body></html>\n"
        )

    def _slim(self, svg: str) -> str:
        """An SVG without what the page has already: letters and markers are drawn once and used by all figures."""

        def once(match: re.Match[str]) -> str:
            if self._shapes.get(match["id"]) == match.group():
                return ""
            self._shapes[match["id"]] = match.group()
            return match.group()

        return _SHAPE.sub(once, _GROUP.sub("<g", _METADATA.sub("", svg)))

    def _color(self, color: str) -> str:
        """A colour of a figure as one that follows the page from light to dark."""
        color = color.lower()
        known = {INK: "ink", "#000000": "ink", SOFT: "soft", LINE: "line", "#ffffff": "paper"}
        if color in known:
            return f"var(--{known[color]})"
        self._colors.add(color)
        return f"var(--c{color[1:]})"

    def _palette(self) -> str:
        def rules(base: dict[str, str], dark: bool) -> str:
            colors = {f"c{c[1:]}": brightened(c) if dark else c for c in sorted(self._colors)}
            return " ".join(f"--{name}: {value};" for name, value in {**base, **colors}.items())

        return (
            f":root {{ color-scheme: light dark; {rules(_LIGHT, False)} }}\n"
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {rules(_DARK, True)} }} }}"
        )


_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_GROUP = re.compile(r'<g id="[^"]*"')
_SHAPE = re.compile(r'<path id="(?P<id>[^"]+)"[^>]*/>')
"""Parts of an SVG: who made it, names of groups that nothing refers to, and shapes that are used by their names."""
_COLOR = re.compile(r"(?<=: )#[0-9a-fA-F]{6}(?=[;\"])")
"""Colours in the style attributes of an SVG."""


def brightened(color: str) -> str:
    """The colour, mixed with white until it can be seen on the dark page."""
    channels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = channels
    for step in range(21):
        mixed = [round(c + (255 - c) * step / 20) for c in channels]
        if _contrast(mixed, [int(_DARK["paper"][i : i + 2], 16) for i in (1, 3, 5)]) >= LEAST_CONTRAST:
            break
    return "#" + "".join(f"{c:02x}" for c in mixed)


def _contrast(a: Sequence[int], b: Sequence[int]) -> float:
    """Contrast of two colours by WCAG 2."""

    def luminance(color: Sequence[int]) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _cell(cell: str) -> str:
    if not isinstance(cell, Linked):
        return html.escape(cell)
    return ", ".join(f'<a href="{_quoted(url)}">{html.escape(text)}</a>' for text, url in cell.pieces)


def _is_words(cell: str) -> bool:
    return bool(cell) and not any(character.isdigit() for character in cell[:2]) and cell != "-"


def _quoted(text: str) -> str:
    return html.escape(text, quote=True)

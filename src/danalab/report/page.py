"""One self-contained HTML page: figures inside, no script, no network; light and dark, readable on a phone."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c6370; --paper: #fff; --line: #d8dbe0; --card: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa3af; --paper: #15171a; --line: #343a42; --card: #1f2328; } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--soft); margin-top: 0; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
ul.links { columns: 18rem; padding-left: 1.2rem; font-size: .9rem; }
a { color: inherit; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-x: auto;
  white-space: pre-wrap; }
"""


@dataclass
class Page:
    """A page that grows from top to bottom; `render` gives the HTML."""

    title: str
    lead: str
    _parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """A section's heading."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Plain text."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def figure(self, figure: Figure, caption: str) -> None:
        """A figure as inline SVG, described by its caption for those who cannot see it."""
        label = html.escape(caption, quote=True)
        svg = svg_text(figure).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        self._parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; wide ones scroll on their own."""
        head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headings)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def links(self, targets: Sequence[tuple[str, str]]) -> None:
        """A list of (text, address)."""
        items = [f'<li><a href="{html.escape(url, quote=True)}">{html.escape(text)}</a></li>' for text, url in targets]
        self._parts.append(f'<ul class="links">{"".join(items)}</ul>')

    def verbatim(self, text: str) -> None:
        """Text as it is: a sample, a command."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def render(self) -> str:
        """The whole page."""
        title = html.escape(self.title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
            f'<h1>{title}</h1><p class="lead">{html.escape(self.lead)}</p>'
            + "\n".join(self._parts)
            + "</main></body></html>\n"
        )


def svg_text(figure: Figure) -> str:
    """A figure as SVG markup without the XML prologue; the same figure always gives the same text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "danalab"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]

"""Long pages open as lists of their sections: each is folded until it is clicked, searched for or linked to."""

import re
from typing import Any

FOLDED = {"lab-notebook": 2, "optimizers": 3}
"""Page -> level of the headings that are folded."""

_TAG = re.compile(r"<section\b[^>]*>|</section>")


def fold(body: str, level: int) -> str:
    """HTML in which each section of the level is a `<details>` whose summary is the heading."""
    heading = rf"(?:<span id=\"[^\"]+\"></span>)*\s*(<h{level}>.*?</h{level}>)"
    opening = re.compile(rf"(<section id=\"[^\"]+\">)\s*{heading}", re.DOTALL)
    result, place = [], 0
    while match := opening.search(body, place):
        end = _end(body, match.end(1))
        inner = body[match.end() : end]
        result += [
            body[place : match.start()],
            match[1],
            f"<details><summary>{match[2]}</summary>",
            inner,
            "</details>",
        ]
        place = end
    return "".join([*result, body[place:]])


def _end(body: str, place: int) -> int:
    """Where the section that is open at `place` ends."""
    depth = 1
    for tag in _TAG.finditer(body, place):
        depth += -1 if tag[0].startswith("</") else 1
        if depth == 0:
            return tag.start()
    return len(body)


def add(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Sphinx's hook for the HTML of a page."""
    if name in FOLDED and "body" in context:
        context["body"] = fold(context["body"], FOLDED[name])

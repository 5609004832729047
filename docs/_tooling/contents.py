"""The site's navigation is the list of links of index.md: one caption per section, in the order of reading."""

import posixpath
import re
from typing import Any

COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the repository's root -> their copies in reference/."""

_LINK = re.compile(r"^[-|] \[([^\]]*)\]\(([^)#:]+)\.md\)", re.MULTILINE)


def toctrees(page: str) -> str:
    """Hidden tables of contents, one for each section of `page` whose lines start with links to pages."""
    blocks = []
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0].strip()
        if pages := [f"{text} <{name}>" for text, name in _LINK.findall(section)]:
            pages += ["reference/index"] if title == "Reference" else []
            blocks.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]))
    return "\n\n".join(blocks)


def below(page: str) -> str:
    """A hidden table of contents of a folder's README: the pages that its lists and tables begin with."""
    names = dict.fromkeys(name for _, name in _LINK.findall(page))
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```"]) if names else ""


def outside(page: str, name: str) -> str:
    """A page whose links to Markdown files outside of docs/ lead to their copies on the site, or to downloads.

    Args: name: the page without its suffix, relative to docs/.
    """

    def change(match: re.Match[str]) -> str:
        text, target, anchor = match.groups(default="")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if not place.startswith("../"):
            return match[0]
        place = place.removeprefix("../")
        if place in COPIED:
            return f"[{text}](/reference/{COPIED[place]}{anchor})"
        return f"{{download}}`{text} </../{place}>`"

    return re.sub(r"\[([^\]]*)\]\((\.\./[^)#]+\.md)(#[^)]*)?\)", change, page)


def pictures(page: str) -> str:
    """Of a `<picture>` with a light and a dark file, the one that fits the theme that the reader chose; one of
    figures/moving becomes a moving figure (docs/_static/figures.js)."""

    def change(match: re.Match[str]) -> str:
        text, light = re.search(r'<img alt="([^"]*)" src="([^"]*)"', match[0]).groups()  # pyright: ignore[reportOptionalMemberAccess]
        name = re.fullmatch(r".*figures/moving/(\w+)-light\.svg", light)
        images = ((light, "only-light"), (light.replace("-light.", "-dark."), "only-dark"))
        shown = "\n\n".join(
            f"```{{image}} {file}\n:alt: {text}\n:class: {theme}\n```" for file, theme in images
        )
        return f'<figure class="moving" data-figure="{name[1]}">\n\n{shown}\n\n</figure>' if name else shown

    return re.sub(r"<picture>.*?</picture>", change, page, flags=re.DOTALL)


def copied(page: str) -> str:
    """A page of the repository's root with its links as seen from docs/reference/."""
    page = re.sub(r"\]\((?![a-z]+:|#|docs/)([^)]+)\)", r"](../../\1)", page)
    return page.replace("](docs/", "](../")


def add(app: Any, name: str, source: list[str]) -> None:
    """Sphinx's hook for the text of a page."""
    source[0] = pictures(outside(source[0], name))
    if name == app.config.root_doc:
        source[0] += f"\n\n{toctrees(source[0])}\n"
    elif name.endswith("/README"):
        source[0] += f"\n\n{below(source[0])}\n"

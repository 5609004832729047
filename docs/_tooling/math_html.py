"""Formulas as MathML, which browsers draw without a script and without a network."""

from typing import Any

from latex2mathml.converter import convert


def inline(visitor: Any, node: Any) -> None:
    """Sphinx's hook for a formula in a line."""
    visitor.body.append(convert(node.astext(), display="inline"))
    _skip()


def block(visitor: Any, node: Any) -> None:
    """Sphinx's hook for a formula of its own; one that is wider than a phone is scrolled."""
    visitor.body.append(
        f'<div class="math" style="overflow-x: auto">{convert(node.astext(), display="block")}</div>'
    )
    _skip()


def _skip() -> None:
    from docutils.nodes import SkipNode

    raise SkipNode


def setup(app: Any) -> dict[str, bool]:
    """As a Sphinx extension."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

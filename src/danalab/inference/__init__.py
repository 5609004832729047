"""Text from a model: an engine with continuous batching, sampling parameters, constraints, tokens to text."""

from typing import Any

from danalab.lazy import attach_stub

_named, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["JsonConstraint"]


def __getattr__(name: str) -> Any:
    """A public name; `JsonConstraint` is an annex's."""
    if name != "JsonConstraint":
        return _named(name)
    from danalab.inference.request import CONSTRAINTS

    return CONSTRAINTS.get("json")

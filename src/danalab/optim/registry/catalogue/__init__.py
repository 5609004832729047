"""The entries of the registry, one file for each source of optimizers; each file has a tuple `SPECS`.

Nothing here is imported before an optimizer is looked up by name, and no optional library before one of its optimizers
is built.
"""

from collections.abc import Iterator
from importlib import import_module

from danalab.optim.registry.spec import OptimizerSpec

FILES = ("torch_native", "ours", "wrapped", "library")


def entries() -> Iterator[OptimizerSpec]:
    """All entries, in the order in which they are listed."""
    for file in FILES:
        yield from import_module(f"{__name__}.{file}").SPECS

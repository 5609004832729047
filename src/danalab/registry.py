"""One registry for everything that is chosen by name: optimizers, models, schedules, data sources."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from danalab import plugins
from danalab.errors import UserError, nearest

T = TypeVar("T")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


class Registry(Generic[T]):
    """Items by name. Underscores and hyphens are the same, case does not matter, a name is given once."""

    def __init__(self, kind: str):
        """`kind` is what an item is called in messages, e.g. "optimizer"."""
        self.kind = kind
        self._items: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._plugins: dict[str, str] = {}

    def add(self, name: str, item: T, *aliases: str) -> T:
        """Register `item` under `name` and `aliases`; returns it. KeyError: one is taken (a programmer's mistake)."""
        for key in (name, *aliases):
            if self._has(key):
                raise KeyError(f"{self.kind} '{key}' is registered twice")
        self._items[_normal(name)] = item
        self._plugins[_normal(name)] = plugins.loading()
        self._aliases.update({_normal(alias): _normal(name) for alias in aliases})
        return item

    def canonical(self, name: str) -> str:
        """The registered name of an alias, also with underscores; UserError: unknown, with the nearest and all."""
        known = name in self  # which loads plugins
        key = self._aliases.get(_normal(name), _normal(name))
        if not known:
            hint = nearest(key, [*self._items, *self._aliases])
            raise UserError(f"unknown {self.kind} '{name}'{hint}; known: {', '.join(self.names())}")
        return key

    def get(self, name: str) -> T:
        """The item called `name`; see `canonical` for what is raised."""
        return self._items[self.canonical(name)]

    def spellings(self) -> list[str]:
        """The names that are registered so far, each with its aliases after it."""
        of = self._aliases.items()
        return [word for name in self._items for word in (name, *(alias for alias, known in of if known == name))]

    def plugin(self, name: str) -> str:
        """The plugin that registered `name`; empty: this package, or code that called `add`."""
        return self._plugins.get(self.canonical(name), "")

    def names(self) -> list[str]:
        """The registered names, aliases apart, in order of registration, with those of plugins."""
        plugins.load(self.kind)
        return list(self._items)

    def bundled(self) -> dict[str, T]:
        """The items that are registered so far and those of annexes by name, without a search for plugins."""
        plugins.load_annexes(self.kind)
        return dict(self._items)

    def _has(self, name: str) -> bool:
        return _normal(name) in self._items or _normal(name) in self._aliases

    def __contains__(self, name: str) -> bool:
        if not self._has(name):
            plugins.load(self.kind)
        return self._has(name)

    def __iter__(self) -> Iterator[str]:
        """Names that are registered so far."""
        return iter(self._items)

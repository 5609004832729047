"""An update rule as data: its state, its scalars, its update, and the back ends that it has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """What an optimizer stores for a parameter, and how it updates one.

    `update` is the reference, a pure function; the compiled back end traces it. The other back ends are optional.
    All of them take the scalars that `scalars(group, t)` returns, by name.
    """

    name: str
    moments: tuple[str, ...]
    """Keys of the state tensors, in the order in which `update` takes them after parameter and gradient."""
    scalars: Callable[[Mapping[str, Any], Any], dict[str, Any]]
    """(group, t) -> scalars of step t, `lr` and `decay_factor` among them."""
    update: Callable[..., tuple[Any, ...]]
    """(parameter, gradient, *moments, **scalars) -> the new parameter and moments: tensors of any shape. Parameter and
    gradient have any floating dtype; arithmetic is done in that of the moments, float32 or float64, which the new
    parameter has, to be rounded once by the caller. `rules.scalars` says what the scalars are."""
    direction: Callable[..., Any]
    """(gradient, *new moments, **scalars without lr, decay_factor and gains) -> the update before the learning rate."""
    gains: tuple[str, ...]
    """Scalars that weigh the new gradient: with zeros a step leaves the moments as they are."""
    foreach: Callable[..., None] | None = None
    """`update` in place, on lists of tensors (`rules.foreach.TensorList`). None: there is none."""
    kernel_scalars: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Scalars -> those of the kernels in kernels.cpp and triton_kernel.py, which have the rule's name; `lr`,
    `decay_factor` and `eps` are passed unchanged. None: there is no kernel."""
    aged: bool = False
    """The gain of its first moment is that of the settings in `danalab.optim.settings.Memory`."""
    settings: Callable[..., Any] | None = None
    """Declaration of its settings (`danalab.optim.settings`), where a row of the catalogue names the rule itself."""

    def stored(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Keys of a group's state tensors: the moments, and behind them the averages of `buffers`."""
        buffers = group.get("buffers", 1) if self.aged else 1
        return (*self.moments, *(f"average_{i}" for i in range(buffers if buffers > 1 else 0)))

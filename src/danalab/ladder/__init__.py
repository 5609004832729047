"""The ladder: many runs, the laws through them, and the compute that an optimizer saves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.ladder.gain import compute_gain
    from danalab.ladder.loss_fit import fit_joint_laws, fit_loss_law
    from danalab.ladder.lr_law import fit_lr_law
    from danalab.ladder.saved import compute_saved

_WHERE = {
    "compute_gain": "gain",
    "compute_saved": "saved",
    "fit_joint_laws": "loss_fit",
    "fit_loss_law": "loss_fit",
    "fit_lr_law": "lr_law",
}

__all__ = ["compute_gain", "compute_saved", "fit_joint_laws", "fit_loss_law", "fit_lr_law"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

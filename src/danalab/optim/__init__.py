"""Optimizers as a library: the Dana family, schedules, and a registry. Needs torch and nothing else.

Names are imported when first used, so that `danalab.optim.schedules` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from danalab.optim.adamw_decaying_wd import AdamWDecayingWD
    from danalab.optim.ademamix import AdEMAMix, AdEMAMixDecayingWD
    from danalab.optim.auto_dana import AutoDana
    from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
    from danalab.optim.dana_plain import Dana, SignDana
    from danalab.optim.kinds import parameter_kinds
    from danalab.optim.manau import Manau
    from danalab.optim.muon import DMuon, Muon
    from danalab.optim.registry import OptimizerSpec, build_optimizer, list_optimizers, optimizer_spec
    from danalab.optim.schedules import get_schedule, lr_scheduler
    from danalab.optim.snoo import SNOO
    from danalab.optim.zero import DistributedMuonAdamW

_WHERE = {
    "ADana": "dana",
    "DanaMK4": "dana",
    "DanaStar": "dana",
    "DanaStarMK4": "dana",
    "AdamWDecayingWD": "adamw_decaying_wd",
    "AdEMAMix": "ademamix",
    "AdEMAMixDecayingWD": "ademamix",
    "Dana": "dana_plain",
    "SignDana": "dana_plain",
    "AutoDana": "auto_dana",
    "SNOO": "snoo",
    "Muon": "muon",
    "DMuon": "muon",
    "Manau": "manau",
    "DistributedMuonAdamW": "zero",
    "OptimizerSpec": "registry",
    "build_optimizer": "registry",
    "list_optimizers": "registry",
    "optimizer_spec": "registry",
    "parameter_kinds": "kinds",
    "get_schedule": "schedules",
    "lr_scheduler": "schedules",
}

__all__ = [
    "SNOO",
    "ADana",
    "AdEMAMix",
    "AdEMAMixDecayingWD",
    "AdamWDecayingWD",
    "AutoDana",
    "DMuon",
    "Dana",
    "DanaMK4",
    "DanaStar",
    "DanaStarMK4",
    "DistributedMuonAdamW",
    "Manau",
    "Muon",
    "OptimizerSpec",
    "SignDana",
    "build_optimizer",
    "get_schedule",
    "list_optimizers",
    "lr_scheduler",
    "optimizer_spec",
    "parameter_kinds",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__

"""Optimizers as a library: the Dana family, Muon's, baselines by name, and schedules. Needs only torch."""

from danalab.optim.adamw import AdamWDecayingWD
from danalab.optim.ademamix import AdEMAMix, AdEMAMixDecayingWD
from danalab.optim.base import Optimizer
from danalab.optim.build import OPTIMIZERS, build_optimizer, list_optimizers, settings_of
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.experimental import SNOO, AutoDana, Dana, SignDana
from danalab.optim.groups import parameter_kinds
from danalab.optim.kernels import step
from danalab.optim.muon import DanaMuon, DMuon, Manau, Muon
from danalab.optim.schedules import get_schedule, lr_scheduler
from danalab.optim.sharded import DistributedMuonAdamW
from danalab.optimizer_facts import warmup_steps

Optimizer.fast_step = staticmethod(step)

__all__ = [
    "OPTIMIZERS",
    "SNOO",
    "ADana",
    "AdEMAMix",
    "AdEMAMixDecayingWD",
    "AdamWDecayingWD",
    "AutoDana",
    "DMuon",
    "Dana",
    "DanaMK4",
    "DanaMuon",
    "DanaStar",
    "DanaStarMK4",
    "DistributedMuonAdamW",
    "Manau",
    "Muon",
    "SignDana",
    "build_optimizer",
    "get_schedule",
    "list_optimizers",
    "lr_scheduler",
    "parameter_kinds",
    "settings_of",
    "warmup_steps",
]

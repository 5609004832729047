"""Forms between D-Muon and DanaMuon, one difference each: danalab ladder bench/muon_forms.yaml

Used as `opt: ./muon_forms.py:LogTimeDMuon` in that file.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from danalab.optim import DanaMuon, DMuon
from danalab.optim.optimizers.matrix.base import coupled
from danalab.optim.optimizers.matrix.muon import MATCHED_MUON, _decay_factor, log_time_muon_scalars
from danalab.optim.rules.adana import ADANA
from danalab.optim.rules.scalars import log_time_scalars, momentum_gain

Scalars = dict[str, Any]
LOG_TIME = {"delta": 8.0, "kappa": 0.85}


def _log_time(group: Mapping[str, Any], t: int) -> Scalars:
    return log_time_muon_scalars({**group, **LOG_TIME}, t)


def _by_shape(group: Mapping[str, Any], t: int) -> Scalars:
    return {**log_time_muon_scalars(group, t), "matched_rms": None}


def _falling(group: Mapping[str, Any], t: int) -> Scalars:
    return {**log_time_muon_scalars(group, t), "decay_factor": _decay_factor(group, t)}


def _cooled(group: Mapping[str, Any], t: int) -> Scalars:
    gain = momentum_gain({**group, "momentum_cooldown": 1.0}, t)
    return {**log_time_muon_scalars(group, t), "decay": 1 - gain, "gain": gain}


class LogTimeDMuon(DMuon):
    """D-Muon with DanaMuon's momentum of matrices; AdamW for the rest."""

    matrix_rule = replace(MATCHED_MUON, scalars=_log_time)


class RestByADana(DanaMuon):
    """DanaMuon with ADana, not Dana-Star-MK4, for the rest."""

    other_rule = replace(ADANA, scalars=coupled(log_time_scalars, _decay_factor))


class SizeByShape(DanaMuon):
    """DanaMuon with Muon's size of an update, by shape, in place of D-Muon's, by the typical RMS of AdamW."""

    matrix_rule = replace(MATCHED_MUON, scalars=_by_shape)


class FallingDecay(DanaMuon):
    """DanaMuon whose matrices' weight decay falls as 1 / (1 + t / T), as that of the rest does."""

    matrix_rule = replace(MATCHED_MUON, scalars=_falling)


class Cooldown(DanaMuon):
    """DanaMuon whose matrices have a memory that shrinks with the learning rate: `momentum_cooldown` 1 of ADana."""

    matrix_rule = replace(MATCHED_MUON, scalars=_cooled)

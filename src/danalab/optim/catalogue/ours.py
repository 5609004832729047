"""The optimizers of this package: the Dana family, Muon's, and AdamW with decaying weight decay."""

from __future__ import annotations

from danalab.optim.adamw_decaying_wd import AdamWDecayingWD
from danalab.optim.catalogue.help_texts import HELP
from danalab.optim.dana import ADana, DanaMK4, DanaStar, DanaStarMK4
from danalab.optim.hybrid import model_groups
from danalab.optim.manau import Manau
from danalab.optim.muon import DMuon, Muon
from danalab.optim.spec import OptimizerSpec, settings_of


def _dana(name: str, optimizer: type, summary: str) -> OptimizerSpec:
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference="arXiv 2602.05298",
        build=optimizer,
        settings=settings_of(optimizer, HELP),
        decay="independent",
        log_time=True,
    )


def _muon(name: str, optimizer: type, summary: str, reference: str) -> OptimizerSpec:
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference=reference,
        build=optimizer,
        settings=settings_of(optimizer, HELP),
        decay="coupled",
        elementwise=False,
        groups=model_groups,
    )


SPECS = (
    OptimizerSpec(
        name="adamw-decaying-wd",
        summary="AdamW with independent, decaying weight decay",
        reference="arXiv 2602.05298",
        build=AdamWDecayingWD,
        settings=settings_of(AdamWDecayingWD, HELP),
        decay="independent",
    ),
    _dana("adana", ADana, "AdamW in logarithmic time, with damped long momentum"),
    _dana("dana-mk4", DanaMK4, "ADana with its momentum's signal-to-noise ratio clipped"),
    _dana("dana-star", DanaStar, "ADana with a clock for each coordinate"),
    _dana("dana-star-mk4", DanaStarMK4, "ADana with both: a clock for each coordinate, and the clip"),
    _muon("muon", Muon, "orthogonalised momentum for matrices, AdamW for the rest", "K. Jordan et al. 2024"),
    _muon("d-muon", DMuon, "Muon with AdamW's update size: one learning rate for all", "arXiv 2502.16982"),
    _muon("manau", Manau, "D-Muon for matrices, Dana-Star-MK4 for the rest", "arXiv 2502.16982, 2602.05298"),
)

"""The optimizers of this package: the Dana family, AdEMAMix, Muon's, Sophia, and AdamW with decaying weight decay."""

from importlib import import_module
from typing import Any

from danalab.optim.optimizers.base import DecayingOptimizer, LogTimeOptimizer
from danalab.optim.optimizers.matrix import KLSOAP, AdamH, AdamMini, Dion2, Kron, MuonH, Scion
from danalab.optim.optimizers.matrix.base import model_groups
from danalab.optim.optimizers.matrix.muon import DMuon, Manau, Muon
from danalab.optim.optimizers.sophia import SophiaG
from danalab.optim.registry.spec import OptimizerSpec, settings_of
from danalab.optim.settings import HELP


def _elementwise(
    name: str, path: str, summary: str, reference: str = "arXiv 2602.05298", **help_texts: str
) -> OptimizerSpec:
    """An entry of the class at `path` (module:Class) in `danalab.optim.optimizers`.

    `help_texts`: for settings whose shared text does not fit.
    """
    module, _, class_name = path.rpartition(":")
    optimizer = getattr(import_module(f"danalab.optim.optimizers.{module or 'elementwise'}"), class_name)
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference=reference,
        build=optimizer,
        settings=settings_of(optimizer, {**HELP, **help_texts}),
        decay="independent" if issubclass(optimizer, DecayingOptimizer) else "coupled",
        log_time=issubclass(optimizer, LogTimeOptimizer),
    )


def _matrix(
    name: str, optimizer: type, summary: str, reference: str, *, advice: str = "", aliases: Any = (), **help_texts: str
) -> OptimizerSpec:
    """An entry of a class in `danalab.optim.optimizers.matrix`."""
    return OptimizerSpec(
        name=name,
        summary=summary,
        reference=reference,
        build=optimizer,
        settings=settings_of(optimizer, {**HELP, **help_texts}),
        decay="coupled",
        elementwise=False,
        groups=model_groups,
        advice=advice,
        aliases=aliases,
    )


_OF_HEADS = "weight decay of heads; matrices keep their norm"
_AVERAGES = "rates of the fast momentum, the second moment and the slow momentum"

SPECS = (
    _elementwise("adamw-decaying-wd", "AdamWDecayingWD", "AdamW with independent, decaying weight decay"),
    _elementwise(
        "ademamix",
        "AdEMAMix",
        "Adam with a second, slow momentum mixed in",
        "Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137",
        betas=_AVERAGES,
    ),
    _elementwise(
        "ademamix-decaying-wd",
        "AdEMAMixDecayingWD",
        "AdEMAMix with independent, decaying weight decay",
        "arXiv 2409.03137, 2602.05298",
        betas=_AVERAGES,
    ),
    _elementwise("adana", "ADana", "AdamW in logarithmic time, with damped long momentum"),
    _elementwise("dana-mk4", "DanaMK4", "ADana with its momentum's signal-to-noise ratio clipped"),
    _elementwise("dana-star", "DanaStar", "ADana with an effective time for each coordinate"),
    _elementwise(
        "dana-star-mk4",
        "DanaStarMK4",
        "ADana with both: an effective time for each coordinate, and the clip",
    ),
    _elementwise("dana", "Dana", "ADana without normalisation, for linear problems", "arXiv 2602.05298, 2505.16098"),
    _elementwise(
        "sign-dana",
        "SignDana",
        "ADana with signs instead of its normalisation",
        "arXiv 2602.05298, 1802.04434",
    ),
    _elementwise("auto-dana", "AutoDana", "ADana that chooses kappa by its momentum's signal-to-noise ratio"),
    _matrix("muon", Muon, "orthogonalised momentum for matrices, AdamW for the rest", "K. Jordan et al. 2024"),
    _matrix("d-muon", DMuon, "Muon with AdamW's update size: one learning rate for all", "arXiv 2502.16982"),
    _matrix("manau", Manau, "D-Muon for matrices, Dana-Star-MK4 for the rest", "arXiv 2502.16982, 2602.05298"),
    OptimizerSpec(
        name="sophia",
        aliases=("sophiag",),
        summary="momentum divided by an estimate of the curvature, clipped (Gauss-Newton-Bartlett)",
        reference="Liu et al. 2023, arXiv 2305.14342",
        build=SophiaG,
        settings=settings_of(
            SophiaG, {**HELP, "betas": "rates of the momentum and the curvature", "eps": "least denominator"}
        ),
        decay="coupled",
        hessian=True,
        advice="every hessian_interval steps costs one more pass, over one micro-batch with sampled labels",
    ),
    _matrix(
        "muon-h",
        MuonH,
        "Muon with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899",
        advice="meant for a rate that falls linearly over the whole run: --scheduler linear",
        aliases=("hyperball",),
        weight_decay=_OF_HEADS,
    ),
    _matrix(
        "adam-h",
        AdamH,
        "Adam with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899",
        advice="meant for 250 steps of warm-up and a rate that falls linearly",
        weight_decay=_OF_HEADS,
    ),
    _matrix(
        "dion2",
        Dion2,
        "Muon on the rows with the largest momentum only, AdamW for the rest",
        "Ahn, Amsel and Langford 2025, arXiv 2512.16928",
        momentum="factor of the momentum that a step has applied",
    ),
    _matrix(
        "scion",
        Scion,
        "spectral steps for matrices, sign steps for the rest, within balls",
        "Pethick et al. 2025, arXiv 2502.07529",
        advice="weight_decay 1 is its constrained form",
        momentum="rate of the gradients' average",
    ),
    _matrix(
        "kl-soap",
        KLSOAP,
        "SOAP with Kronecker factors that minimise a KL divergence, AdamW for the rest",
        "Lin et al. 2025, arXiv 2509.03378",
        advice="its first step only sets up the preconditioner",
        shampoo_beta="rate of the factors' averages",
    ),
    _matrix(
        "psgd-kron",
        Kron,
        "momentum preconditioned by fitted triangular Kronecker factors, AdamW for the rest",
        "Li 2015, arXiv 1512.04202; 2402.04553",
        momentum="rate of the gradients' average",
    ),
    _matrix(
        "adam-mini",
        AdamMini,
        "Adam with one second moment for each row of a matrix, AdamW for the rest",
        "Zhang et al. 2024, arXiv 2406.16793",
    ),
)

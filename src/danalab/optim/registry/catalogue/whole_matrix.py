"""The optimizers of `danalab.optim.whole_matrix`."""

from danalab.optim.matrix.hybrid import model_groups
from danalab.optim.registry.catalogue.help_texts import HELP
from danalab.optim.registry.spec import OptimizerSpec, settings_of
from danalab.optim.whole_matrix import KLSOAP, AdamH, AdamMini, Dion2, Kron, MuonH, Scion

_OF_HEADS = "weight decay of heads; matrices keep their norm"


def _entry(
    name: str, optimizer: type, summary: str, reference: str, *, advice: str = "", **help_texts: str
) -> OptimizerSpec:
    """`help_texts`: for settings whose shared text does not fit."""
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
        aliases=("hyperball",) if name == "muon-h" else (),
    )


SPECS = (
    _entry(
        "muon-h",
        MuonH,
        "Muon with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899",
        advice="meant for a rate that falls linearly over the whole run: --scheduler linear",
        weight_decay=_OF_HEADS,
    ),
    _entry(
        "adam-h",
        AdamH,
        "Adam with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899",
        advice="meant for 250 steps of warm-up and a rate that falls linearly",
        weight_decay=_OF_HEADS,
    ),
    _entry(
        "dion2",
        Dion2,
        "Muon on the rows with the largest momentum only, AdamW for the rest",
        "Ahn, Amsel and Langford 2025, arXiv 2512.16928",
        momentum="factor of the momentum that a step has applied",
    ),
    _entry(
        "scion",
        Scion,
        "spectral steps for matrices, sign steps for the rest, within balls",
        "Pethick et al. 2025, arXiv 2502.07529",
        advice="weight_decay 1 is its constrained form",
        momentum="rate of the gradients' average",
    ),
    _entry(
        "kl-soap",
        KLSOAP,
        "SOAP with Kronecker factors that minimise a KL divergence, AdamW for the rest",
        "Lin et al. 2025, arXiv 2509.03378",
        advice="its first step only sets up the preconditioner",
        shampoo_beta="rate of the factors' averages",
    ),
    _entry(
        "psgd-kron",
        Kron,
        "momentum preconditioned by fitted triangular Kronecker factors, AdamW for the rest",
        "Li 2015, arXiv 1512.04202; 2402.04553",
        momentum="rate of the gradients' average",
    ),
    _entry(
        "adam-mini",
        AdamMini,
        "Adam with one second moment for each row of a matrix, AdamW for the rest",
        "Zhang et al. 2024, arXiv 2406.16793",
    ),
)

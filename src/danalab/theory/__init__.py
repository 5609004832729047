"""The theory: power-law random features, and why logarithmic-time momentum falls faster than SGD on them. Needs JAX.

    from danalab.theory import PLRF, draw, moment_recursion, ode, standard

    model = PLRF(alpha=1.0, beta=0.5, v=400, d=100)
    algorithm = standard("dana-decaying", alpha=1.0, beta=0.5, d=100, trace=model.trace)
    exact = moment_recursion(draw(model).spectrum, algorithm, steps=20_000)
    curve = ode(draw(model).spectrum, algorithm, horizon=20_000)

Loops over steps run inside XLA; float64 is enabled inside the functions that need it, never for the process.
"""

from importlib.util import find_spec

from danalab.errors import MissingExtra

for _package in ("jax", "scipy"):
    if find_spec(_package) is None:
        raise MissingExtra(_package, "danalab.theory", "theory")

from danalab.theory.algorithms import (  # noqa: E402
    ALGORITHMS,
    Momentum,
    PowerLaw,
    critical_kappa,
    dana_average,
    dana_constant,
    dana_decaying,
    sgd,
    sgd_momentum,
    standard,
)
from danalab.theory.curve import Curve  # noqa: E402
from danalab.theory.equivalents import density, limit_loss, smallest_eigenvalue  # noqa: E402
from danalab.theory.exponents import compute_optimum, frontier, phase, time_exponents  # noqa: E402
from danalab.theory.moments import kernel_norm, moment_recursion, noise_floor, ode, simulate  # noqa: E402
from danalab.theory.problem import PLRF, Spectrum, binned_spectrum, draw, power_law_spectrum  # noqa: E402
from danalab.theory.races import hummingbird, moe  # noqa: E402
from danalab.theory.tau_statistics import measure_tau, tau_limit  # noqa: E402

__all__ = [
    "ALGORITHMS",
    "PLRF",
    "Curve",
    "Momentum",
    "PowerLaw",
    "Spectrum",
    "binned_spectrum",
    "compute_optimum",
    "critical_kappa",
    "dana_average",
    "dana_constant",
    "dana_decaying",
    "density",
    "draw",
    "frontier",
    "hummingbird",
    "kernel_norm",
    "limit_loss",
    "measure_tau",
    "moe",
    "moment_recursion",
    "noise_floor",
    "ode",
    "phase",
    "power_law_spectrum",
    "sgd",
    "sgd_momentum",
    "simulate",
    "smallest_eigenvalue",
    "standard",
    "tau_limit",
    "time_exponents",
]

"""The theory: power-law random features, and why logarithmic-time momentum falls faster than SGD on them. Needs JAX.

    from danalab.theory import PLRF, draw, moment_recursion, ode, standard

    model = PLRF(alpha=1.0, beta=0.5, v=400, d=100)
    algorithm = standard("dana-decaying", alpha=1.0, beta=0.5, d=100, trace=model.trace)
    exact = moment_recursion(draw(model).spectrum, algorithm, steps=20_000)
    curve = ode(draw(model).spectrum, algorithm, horizon=20_000)

Imports nothing of danalab but errors and files. Loops over steps run inside XLA; float64 is enabled inside the
functions that need it, never for the process.
"""

from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from danalab.errors import MissingExtra

for _package in ("jax", "scipy"):
    if util.find_spec(_package) is None:
        raise MissingExtra(_package, "theory", "danalab.theory")

if TYPE_CHECKING:
    from danalab.theory.algorithms import (
        ALGORITHMS,
        AdEMAMix,
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
    from danalab.theory.curves import Curve
    from danalab.theory.envelope import frontier
    from danalab.theory.equivalents import density, limit_loss, smallest_eigenvalue
    from danalab.theory.experts import moe
    from danalab.theory.exponents import compute_optimum, phase, time_exponents
    from danalab.theory.kappa_sweep import hummingbird
    from danalab.theory.log_time import ode
    from danalab.theory.model import PLRF, Spectrum
    from danalab.theory.moments import moment_recursion
    from danalab.theory.prediction import load_spectrum, predict
    from danalab.theory.runs import simulate
    from danalab.theory.spectra import binned_spectrum, draw, power_law_spectrum
    from danalab.theory.tau import measure_tau, tau_limit
    from danalab.theory.volterra import kernel_norm, noise_floor

_WHERE = {
    "algorithms": (
        "ALGORITHMS AdEMAMix Momentum PowerLaw critical_kappa dana_average dana_constant dana_decaying sgd "
        "sgd_momentum standard"
    ),
    "curves": "Curve",
    "envelope": "frontier",
    "equivalents": "density limit_loss smallest_eigenvalue",
    "experts": "moe",
    "exponents": "compute_optimum phase time_exponents",
    "kappa_sweep": "hummingbird",
    "log_time": "ode",
    "model": "PLRF Spectrum",
    "moments": "moment_recursion",
    "prediction": "load_spectrum predict",
    "runs": "simulate",
    "spectra": "binned_spectrum draw power_law_spectrum",
    "tau": "measure_tau tau_limit",
    "volterra": "kernel_norm noise_floor",
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "ALGORITHMS",
    "PLRF",
    "AdEMAMix",
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
    "load_spectrum",
    "measure_tau",
    "moe",
    "moment_recursion",
    "noise_floor",
    "ode",
    "phase",
    "power_law_spectrum",
    "predict",
    "sgd",
    "sgd_momentum",
    "simulate",
    "smallest_eigenvalue",
    "standard",
    "tau_limit",
    "time_exponents",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'danalab.theory' has no attribute '{name}'")
    return getattr(import_module(f"danalab.theory.{_MODULE[name]}"), name)

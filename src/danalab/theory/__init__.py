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
from danalab.lazy import attach_stub

for _package in ("jax", "scipy"):
    if find_spec(_package) is None:
        raise MissingExtra(_package, "danalab.theory", "theory")

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

"""The second moments of one eigen-direction: V = (rho, sig, chi) = (E r^2, E y^2, E r y) obeys

    dV/dt = Omega(t, lam) V + lam Gam(t) 2P(t),      2P = 2 limit + sum_j w_j lam_j rho_j.

Exact for Gaussian data up to the step size (Wick calculus). Everything here is plain arithmetic: numpy or JAX arrays.
Source: the moment equations of Ferbach et al. 2025 (arXiv 2505.16098), rederived.
"""

from typing import Any

from danalab.theory.dynamics.algorithms import Rates

Matrix = tuple[tuple[Any, Any, Any], tuple[Any, Any, Any], tuple[Any, Any, Any]]
Vector = tuple[Any, Any, Any]


def drift(rates: Rates, lam: Any, batch: float) -> tuple[Matrix, Vector]:
    """Omega (entries broadcast over `lam`) and Gam of the exact equations."""
    g1, g2, g3, D = rates
    q = g2 + g1 * g3
    C = 1 + 1 / batch
    keep = 1 - D
    omega = (
        (
            -2 * q * lam + C * q**2 * lam**2,
            g3**2 * keep**2 + 0 * lam,
            -2 * g3 * keep + 2 * q * g3 * keep * lam,
        ),
        (C * g1**2 * lam**2, -2 * D + D**2 + 0 * lam, 2 * g1 * keep * lam),
        (
            g1 * lam - C * g1 * q * lam**2,
            -g3 * keep**2 + 0 * lam,
            -D - keep * (g2 + 2 * g1 * g3) * lam,
        ),
    )
    return omega, (q**2 / batch, g1**2 / batch, -g1 * q / batch)


def approximate_drift(rates: Rates, lam: Any, batch: float) -> tuple[Matrix, Vector]:
    """The leading order of `drift` for small steps, as the published ODE has it."""
    g1, g2, g3, D = rates
    zero = 0 * lam
    omega = (
        (-2 * g2 * lam, zero, -2 * g3 + zero),
        (zero, -2 * D + zero, 2 * g1 * lam),
        (g1 * lam, -g3 + zero, -D - g2 * lam),
    )
    return omega, (g2**2 / batch, g1**2 / batch, 0 * g1)


def solve3(matrix: Matrix, vector: Vector) -> Vector:
    """x with `matrix` x = `vector`, entry by entry over any shape (Cramer's rule)."""
    (a, b, c), (d, e, f), (g, h, i) = matrix
    x, y, z = vector
    ei_fh, di_fg, dh_eg = e * i - f * h, d * i - f * g, d * h - e * g
    scale = 1 / (a * ei_fh - b * di_fg + c * dh_eg)
    return (
        scale * (ei_fh * x - (b * i - c * h) * y + (b * f - c * e) * z),
        scale * (-di_fg * x + (a * i - c * g) * y - (a * f - c * d) * z),
        scale * (dh_eg * x - (a * h - b * g) * y + (a * e - b * d) * z),
    )

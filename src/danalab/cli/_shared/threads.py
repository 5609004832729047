"""How the CPU threads of a training step wait for each other."""

import os

SPINS = 1_000
"""Turns of the loop in which a thread waits before it sleeps. With GNU OpenMP's own 300,000, waiting threads keep the
cores of a busy machine from the thread that they wait for (docs/lab-notebook.md, "Waiting threads")."""

_CHOSEN_BY_THE_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def yield_cores() -> None:
    """Let waiting threads sleep soon, in this process and those that it starts. Call it before torch is loaded."""
    if not any(name in os.environ for name in _CHOSEN_BY_THE_USER):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)

"""Many processes, one run: the world of ranks, the ways of sharing the model and its gradients, the launcher."""

from danalab.train.parallel.world import Layout, World, join, joined

__all__ = ["Layout", "World", "join", "joined"]

"""Parallel training: ranks and their layout, a strategy for each --distributed-backend, the launcher of --nproc."""

from danalab.train.parallel.world import Layout, World, join, joined

__all__ = ["Layout", "World", "join", "joined"]

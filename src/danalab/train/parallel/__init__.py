"""Parallel training: ranks and their layout, a strategy for each --distributed-backend, the launcher of --nproc."""

from danalab.train.parallel.world import RankLayout, World, join, joined

__all__ = ["RankLayout", "World", "join", "joined"]

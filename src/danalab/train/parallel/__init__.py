"""Parallel training: ranks and their layout, a strategy for each --distributed-backend, the launcher of --nproc."""

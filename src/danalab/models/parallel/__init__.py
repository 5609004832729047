"""Tensor, expert and vocabulary parallelism of models."""

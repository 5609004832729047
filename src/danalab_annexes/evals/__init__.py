"""Evaluations of a run."""

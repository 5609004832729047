"""Runs of Weights & Biases as rows of a ladder."""

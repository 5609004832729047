"""Validation loss, evaluation of a finished run, and lm-eval tasks."""

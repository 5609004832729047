"""Evaluation on tasks: scores of answers with standard errors, pass@k, and in-context tasks."""

"""Checks before a long run: data, loss at step 0, memory, resume, throughput, overfitting of one sequence."""

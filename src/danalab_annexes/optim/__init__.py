"""Of optimizers: commands of `danalab optim` that look at them side by side, and at their schedules."""

"""One training step: gradients, clipping, checks, the update."""

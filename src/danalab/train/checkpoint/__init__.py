"""Checkpoints: written by all ranks beside training, committed atomically, verified before they are read."""

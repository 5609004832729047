"""Checkpoints: what is committed and verifies is there; everything else does not exist."""

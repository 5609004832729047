"""Optimizers that update each element by itself: the Dana family, AdEMAMix, AdamW with decaying weight decay."""

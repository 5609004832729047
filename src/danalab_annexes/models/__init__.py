"""Architectures with layers of their own, and other formats of models."""

"""The tiny configurations of the models' tests."""

from models.conftest import tiny

__all__ = ["tiny"]

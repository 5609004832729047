"""Ladders of seconds."""

from sweep.conftest import fixed as fixed

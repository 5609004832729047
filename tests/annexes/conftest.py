"""Data of a few words for whole runs."""

from distributed.conftest import words as words

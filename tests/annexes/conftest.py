"""Fixtures of the rooms whose registries the annexes add to."""

from distributed.conftest import words as words
from train.callbacks.conftest import watching as watching
from train.conftest import data as data
from train.conftest import tiny as tiny

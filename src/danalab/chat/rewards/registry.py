"""Rewards by name: (problem, answer of the assistant as text) -> score, 1 for a right answer and 0 for a wrong one."""

from collections.abc import Callable

from danalab.chat.tasks.base import Problem
from danalab.registry import Registry

Reward = Callable[[Problem, str], float]

REWARDS: Registry[Reward] = Registry("reward")

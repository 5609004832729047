"""Rewards: functions that score an answer to a problem, by name or from a file of one's own."""

from danalab.chat.rewards.choice import choice
from danalab.chat.rewards.code import code
from danalab.chat.rewards.exact import exact
from danalab.chat.rewards.number import number
from danalab.chat.rewards.registry import REWARDS, Reward
from danalab.chat.rewards.score import Scorer

__all__ = ["REWARDS", "Reward", "Scorer", "choice", "code", "exact", "number"]

"""Rewards: functions that score an answer to a problem, by name or from a file of one's own."""

from danalab.chat.rewards.named import REWARDS, Reward, Scorer, choice, code, exact, number

__all__ = ["REWARDS", "Reward", "Scorer", "choice", "code", "exact", "number"]

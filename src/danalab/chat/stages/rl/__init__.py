"""Reinforcement learning from checkable rewards: rollouts of the current model, policy-gradient losses."""

"""Speed as ratios to named peers, each measured in one run: optimizer steps, the trainer, parallel modes, experts."""

from danalab.cli._shared.measures import subverbs

SUBVERBS = subverbs("verbs")

"""Power-law random features: curves, phases, schedules, sparse experts, momentum cooldown, predictions; figures."""

from danalab.cli._shared.measures import subverbs

SUBVERBS = subverbs("theory_verbs")

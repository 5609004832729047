"""Laws of the learning rate and the final loss, fitted to runs, with intervals."""

from typing import Literal

LawKind = Literal["saturated", "broken", "chinchilla"]
"""saturated: E + A C^-alpha; broken: E + A C^-alpha + B C^-beta; chinchilla: E + A N^-alpha + B D^-beta."""
Convention = Literal["exact", "6nd", "6nd-total", "kaplan", "deepseek"]
"""Ways of counting compute; see `danalab.ladder.flop_conventions`."""

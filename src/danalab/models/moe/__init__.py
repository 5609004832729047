"""Mixture of experts, dropless: a router sends each token to a few of many MLPs, and only these are computed."""

from danalab.models.moe.experts import Experts
from danalab.models.moe.mixture import MixtureOfExperts, Router, Routing, make_mlp

__all__ = ["Experts", "MixtureOfExperts", "Router", "Routing", "make_mlp"]

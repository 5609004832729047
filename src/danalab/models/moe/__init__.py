"""Mixture of experts, dropless: a router sends each token to a few of many MLPs, and only these are computed."""

from danalab.models.moe.experts import Experts
from danalab.models.moe.mixture import MixtureOfExperts, make_mlp
from danalab.models.moe.router import Router, Routing

__all__ = ["Experts", "MixtureOfExperts", "Router", "Routing", "make_mlp"]

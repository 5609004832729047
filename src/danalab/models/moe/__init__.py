"""Mixture of experts, dropless: a router sends each token to a few of many MLPs, and only these are computed."""

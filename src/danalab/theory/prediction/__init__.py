"""Exponents, the compute-optimal frontier, and predictions compared with measured curves."""

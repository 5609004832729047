"""Exponents, the compute-optimal frontier, and predictions beside measured curves."""

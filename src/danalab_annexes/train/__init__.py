"""Callbacks and a distributed backend of training."""

"""Compute saved: where a curve reaches a loss, at one size and between laws."""

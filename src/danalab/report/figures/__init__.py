"""Figures: losses, laws, compute saved, tuning, schedules."""

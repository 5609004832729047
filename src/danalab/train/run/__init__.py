"""The run folder: its files, metrics, resuming, reading a run from outside."""

"""Sections of a configuration, each with its flags, help and ranges."""

"""Callbacks: progress, mirrors of metrics, statistics, profiles."""

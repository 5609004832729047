"""Data on disk: prepared shards, raw token files, folders of arrays."""

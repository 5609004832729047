"""Layouts of data sets on disk: prepared shards, bare token files, arrays; all are memory-mapped."""

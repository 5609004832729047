"""Preparation: from a source of text to a data set of token shards."""

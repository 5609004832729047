"""The order of tokens: permutations, windows, batches."""

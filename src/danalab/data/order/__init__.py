"""The order of tokens: permutations, windows, packing, batches."""

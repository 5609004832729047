"""The order of tokens: permutation, windows, packing, mixtures, batches."""

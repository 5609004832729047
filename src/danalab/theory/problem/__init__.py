"""Power-law random features: the model, its spectra and their deterministic equivalents."""

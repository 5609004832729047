"""Optimizers that update whole matrices: Muon, D-Muon, Manau, and the orthogonalisation that they share."""

"""Optimizers that orthogonalise the momentum of matrices: Muon, D-Muon, Manau."""

"""Callbacks that a run can have: TensorBoard, Weights & Biases, dynamics, statistics of tau, profiles."""

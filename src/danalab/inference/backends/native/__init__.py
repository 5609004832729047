"""The native back end: one C++ call computes a step, for every architecture, on the CPU."""

"""The figures of the theory: each module computes one study (arrays and parameters) and draws it."""

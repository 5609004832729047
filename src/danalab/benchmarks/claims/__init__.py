"""Claims about models and about the theory, measured: losses and exponents instead of speed."""

"""Decoding on CPUs with AVX-512, and text that is valid JSON."""

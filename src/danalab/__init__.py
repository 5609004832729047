"""danalab: a language-model pre-training lab around logarithmic-time optimizers."""

__version__ = "0.2.0"

"""Models in the format of Hugging Face `transformers`: configurations and weights out and in."""

"""Model classes that are copied into exported folders, for `transformers`."""

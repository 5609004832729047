"""From a source of text to a prepared data set."""

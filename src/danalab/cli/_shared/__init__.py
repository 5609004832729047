"""What verbs share: flags, parsing, tables of results."""

"""Data of other software: bare token files and arrays; and the check of a data set, with advice on what to train."""

"""Many training runs: which, in what order, where, and the row that each leaves."""

"""Of ladders: studies of their rows, what some do while they run, and rows of other programs."""

"""Laws of the learning rate and the final loss, fitted to runs, with intervals."""

"""How the loss moves: algorithms, second moments, differential and integral equations."""

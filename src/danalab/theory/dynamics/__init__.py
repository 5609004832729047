"""Loss dynamics: algorithms, second moments, differential and integral equations."""

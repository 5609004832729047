"""Ways to compute a step: eager reference, foreach lists, the compiled graph, the native CPU kernel."""

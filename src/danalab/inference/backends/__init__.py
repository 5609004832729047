"""Back ends of the engine: eager (the model's own layers, on any device) and native (C++ on CPUs)."""

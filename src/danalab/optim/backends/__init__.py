"""Back ends of an optimizer step: eager (the reference), foreach, native (C++ on CPUs) and compiled (torch.compile)."""

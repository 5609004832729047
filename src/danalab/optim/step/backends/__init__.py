"""Back ends of an optimizer step: eager (the reference), foreach, and one pass by C++, Triton or torch.compile."""

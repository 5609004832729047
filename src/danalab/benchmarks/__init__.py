"""What `danalab bench` measures: each question answered by ratios against named peers, taken in one run."""

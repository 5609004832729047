"""Benchmarks: speed as ratios to named peers, both measured in one run; `danalab bench` and the scripts of bench/."""

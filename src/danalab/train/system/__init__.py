"""The machine: device, number formats, random states, signals, SLURM."""

"""Many runs at once: grids of them, pools of processes, clusters, estimates, and the row that each run leaves."""

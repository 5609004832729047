"""Commands that only some need: a check before a launch, a starter file, job scripts for a cluster."""

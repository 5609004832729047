"""How strong weight decay should be in runs of any length: problems, trials, phases and tables."""

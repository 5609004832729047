"""Post-training: mid-training, supervised fine-tuning, reinforcement learning; the speedrun through all stages."""

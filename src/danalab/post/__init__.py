"""Post-training: mid-training, supervised fine-tuning, reinforcement learning."""

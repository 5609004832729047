"""Stages after pre-training: mid-training and supervised fine-tuning on conversations, reinforcement learning."""

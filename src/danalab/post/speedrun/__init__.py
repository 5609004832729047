"""One command from text to a chat: tokenizer, base, mid-training, fine-tuning, reinforcement learning, scores."""

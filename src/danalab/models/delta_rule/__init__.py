"""The gated delta rule: linear attention with a decaying, overwriting state, in place of softmax attention."""

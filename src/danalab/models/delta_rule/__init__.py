"""The gated delta rule: linear attention whose state forgets and overwrites, in place of softmax attention."""

"""Many runs: pools of training processes, and what is learnt from them."""

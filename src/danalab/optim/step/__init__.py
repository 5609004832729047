"""A step: the batches of tensors, their state and its formats, and the back ends that update them."""

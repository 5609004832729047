"""Estimates for a planned run: memory on one device, hours on named accelerators."""

from danalab.scaling.hardware import ACCELERATORS
from danalab.scaling.plan import Plan

STATE_WORDS = {
    **dict.fromkeys(("signsgd", "adafactor"), 0.0),
    **dict.fromkeys(("sgd", "sf-sgd", "lion", "signum", "tiger", "came", "dana", "sign-dana", "scion"), 1.0),
    # Matrices keep one, the rest two.
    **dict.fromkeys(("muon", "d-muon", "normuon", "muon-h", "dion2", "adam-mini"), 1.3),
    "soda-muon": 2.3,
    "manau": 1.5,
    **dict.fromkeys(("dana-star", "dana-star-mk4", "ademamix", "ademamix-decaying-wd", "mars", "soda"), 3.0),
    **dict.fromkeys(("snoo", "prodigy", "adan", "ema-nesterov", "psgd-kron"), 4.0),
    "snoo-dana": 5.0,
    "kl-soap": 7.2,
    "soap": 9.0,  # with both sides of each matrix, and their eigenvectors
}
"""Float32 values per parameter in the optimizer's state; two (both moments) for the others."""


_STATE_BYTES = {"float32": 4.0, "bf16+8": 3.0, "8bit": 1 + 4 / 256}
"""Bytes of a moment by --state-dtype; 8bit has a float32 scale for each block of 256."""


def state_bytes(opt: str, state_dtype: str = "float32") -> float:
    """Bytes of an optimizer's state for each parameter."""
    return _STATE_BYTES[state_dtype] * STATE_WORDS.get(opt, 2.0)


def memory_gib(
    planned: Plan,
    micro_batch: int,
    activation_bytes: int = 2,
    *,
    state_dtype: str = "float32",
    weight_shards: int = 1,
    state_shards: int = 1,
    recompute: bool = False,
) -> float:
    """Memory to train on one device [GiB]: float32 weights and gradients, optimizer state, activations.

    Activations of a block for backward: about 8 tensors of width d_model and 3 of width mlp_dim per token, with flash
    attention; the chunked loss adds one hidden state and its gradient.

    Args:
        activation_bytes: of one number of an activation; 2 in bfloat16, 4 in float32.
        state_dtype: format of the optimizer's moments.
        weight_shards, state_shards: ranks that share the weights, and the state.
        recompute: leaves the activations of the blocks out, which checkpointing recomputes: a lower bound.
    """
    words = 8 / weight_shards + state_bytes(planned.opt, state_dtype) / state_shards
    states = words * planned.exact_params
    tokens = micro_batch * planned.seq_len
    width = planned.n_heads * planned.head_dim
    hidden = planned.mlp_dim
    if planned.expert_dim is not None:
        hidden = ((planned.top_k or 0) + (planned.n_shared_experts or 0)) * planned.expert_dim
        width += (planned.top_k or 0) * planned.d_model  # copies of each token, to and from its experts
    block = activation_bytes * (4 * planned.d_model + 4 * width + 3 * hidden)
    kept = 0 if recompute else planned.n_layers * block
    activations = tokens * (kept + 8 * planned.d_model)
    return (states + activations) / 2**30


def accelerator_hours(flops: float, mfu: float = 0.4) -> dict[str, float]:
    """Hours on one of each named accelerator at `mfu`, the fraction of peak that training reaches."""
    return {gpu.name: flops / (gpu.tflops * 1e12 * mfu) / 3600 for gpu in ACCELERATORS}

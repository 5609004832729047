"""What the settings are, in a few words; one text for each name, whatever optimizer has it."""

from __future__ import annotations

HELP = {
    "adamw_lr": "peak learning rate of what is not a matrix; none = 0.15 lr",
    "adamw_weight_decay": "weight decay of what is not a matrix; none = weight_decay",
    "alpha_offset": "added to the damping (1+t)^(1-kappa); 1 = published implementation, 0 = printed formula",
    "amsgrad": "keep the maximum of the second moment",
    "betas": "rates of the first and second moment",
    "capturable": "keep the clock on the device, for CUDA graphs",
    "clipsnr": "bound of the damped momentum's signal-to-noise ratio",
    "dana_momentum": "log-time momentum for matrices",
    "delta": "averages weigh a new gradient by delta/(delta+t)",
    "differentiable": "let gradients flow through the step",
    "eps": "added to the root of the second moment",
    "foreach": "work on lists of parameters",
    "fused": "one compiled pass over memory",
    "gamma3": "scale of the momentum term",
    "horizon": "length of the run [steps], with omega; wd_ts = horizon/10",
    "kappa": "exponent of the damping (1+t)^(1-kappa)",
    "matched_rms": "root mean square of a matrix's update",
    "maximize": "ascend in place of descending",
    "momentum": "rate of the matrices' momentum",
    "nesterov": "add the momentum to the gradient",
    "ns_dtype": "dtype of the orthogonalisation; none = bfloat16 on GPUs, float32 on CPUs",
    "ns_method": "orthogonalisation: newton-schulz or polar-express",
    "ns_steps": "steps of the orthogonalisation",
    "omega": "strength of decaying weight decay omega/(wd_ts+t), in place of weight_decay",
    "stochastic_rounding": "round 16-bit parameters up or down at random",
    "wd_ts": "time scale of the decay of weight decay [steps]; none = constant",
    "weight_decay": "weight decay of matrices and heads",
}

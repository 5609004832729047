"""Roles of layers, which decide initialisation, optimizer group and tensor-parallel cut of their weights.

| role                        | weights                                                                  |
|-----------------------------|--------------------------------------------------------------------------|
| embedding                   | a vector for each token id or position                                   |
| tied                        | the token embedding that is the head, too                                |
| linear, residual            | a matrix that reads from, or writes to, the residual stream              |
| expert, expert_residual     | likewise, one matrix per expert                                          |
| router                      | few rows that choose or weigh experts                                    |
| head                        | vocabulary scores                                                        |
| gain, zero_centered_gain    | the vector of a norm; the second is the gain minus 1                     |
| bias                        | of a linear map or norm                                                  |
| oscillator                  | damping, frequency, magnitude and phase of the resonance model           |
| convolution                 | taps of a filter for each channel                                        |
| decay                       | decay rate of each head of the delta rule                                |
"""

KIND_OF_ROLE = {
    "embedding": "embedding",
    "tied": "embedding",
    "linear": "matrix",
    "residual": "matrix",
    "expert": "experts",
    "expert_residual": "experts",
    "router": "router",
    "head": "head",
    **dict.fromkeys(("gain", "zero_centered_gain", "bias", "oscillator", "convolution", "decay"), "vector"),
}
"""Role -> parameter kind of `danalab.optim.core.groups`, by which optimizers group."""

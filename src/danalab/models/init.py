"""Initial weights: zero-mean normal draws whose standard deviation follows from a weight's role; gains are 1, biases 0.

| scheme        | embedding   | linear         | residual                  | head           |
|---------------|-------------|----------------|---------------------------|----------------|
| scaled-gpt    | 1/sqrt(d)   | 1/sqrt(fan_in) | 1/sqrt(2 fan_in n_layers) | 1/sqrt(fan_in) |
| karpathy-gpt2 | 0.02        | 0.02           | 0.02/sqrt(2 n_layers)     | 0.02           |
| standard      | 1           | 1/sqrt(fan_in) | 1/sqrt(fan_in)            | 1/sqrt(fan_in) |

Each matrix of stacked experts is drawn separately; a router is drawn as a linear map, and a table that is embedding and
head at once as a head, so that logits start near 1 in all schemes.

Roles of layers also decide the optimizer group and the tensor-parallel cut of their weights:

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

from collections.abc import Callable, Mapping

import torch
from torch import nn

from danalab.models.shards import assign
from danalab.tables import lookup

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
"""Role -> parameter kind of `danalab.optim.groups`, by which optimizers group."""
Scheme = Callable[[str, float, float], float]
"""(role, columns of the weight: fan_in of a map, width of an embedding; n_layers) -> standard deviation."""
INITS: dict[str, Scheme] = {
    "scaled-gpt": lambda role, columns, n: (2 * columns * n if role == "residual" else columns) ** -0.5,
    "karpathy-gpt2": lambda role, _, n: 0.02 * (2 * n if role == "residual" else 1) ** -0.5,
    "standard": lambda role, width, _: 1.0 if role == "embedding" else width**-0.5,
}
_ORIGINAL = {"ScaledGPT": "scaled-gpt", "KarpathyGPT2": "karpathy-gpt2"}
"""The original's names."""


_DRAWN_AS = {"tied": "head", "expert": "linear", "expert_residual": "residual", "router": "linear"}
"""Role -> the role of the table above with the same standard deviation."""
_CONSTANT = {"gain": 1.0, "zero_centered_gain": 0.0, "bias": 0.0}
_DRAWN_BY_MODULE = ("oscillator", "convolution", "decay")  # roles of modules with a method `draw(generator)`


def initialise(
    model: nn.Module,
    roles: Mapping[str, str],
    n_layers: int,
    init: str,
    generator: torch.Generator,
) -> None:
    """Draw all weights of `model` in place, in the order of its parameters; roles are by parameter name.

    `generator` is on the CPU. Every rank draws every whole weight and keeps its shard, so that the result depends
    neither on the device nor on the number of ranks.
    """
    scheme = lookup(INITS, _ORIGINAL.get(init, init), "initialisation")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if roles[name] in _DRAWN_BY_MODULE:
                continue  # below
            if roles[name] in _CONSTANT:
                parameter.fill_(_CONSTANT[roles[name]])
                continue
            std = scheme(_DRAWN_AS.get(roles[name], roles[name]), parameter.shape[-1], n_layers)
            values = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
            assign(parameter, values)
    for module in model.modules():
        if (draw := getattr(module, "draw", None)) is not None:
            draw(generator)

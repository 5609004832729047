"""Parametrizations: how initial weights and learning rates follow from width and depth, for Adam-like optimizers.

m = d_model / base_d_model, l = n_layers / base_n_layers (`completep`; 1 in `mup`). The table has factors on what the
base model has, whose weights and rates are those of `standard`; those of eps, and [d], are of `completep` alone.

| weights                                            | std, value | rate    | eps     | source            |
|----------------------------------------------------|------------|---------|---------|-------------------|
| embedding of tokens or positions, tied or not      | 1          | 1       | 1/m     | [w] input         |
| matrix that reads from the residual stream         | m^-1/2     | 1/m     | 1/(m l) | [w] hidden        |
| matrix that writes to it                           | m^-1/2 / l | 1/(m l) | 1/m     | [w] hidden, [d]   |
| bias of such a matrix, initially 0                 |            | 1/l     | 1/m     | [w] bias, [d]     |
| gain or other bias in a block                      | 1          | 1       | 1/(m l) | [w] bias          |
| head                                               | 1/m        | 1/m     | 1       | [w] output        |
| gain and bias of the last norm                     | 1          | 1       | 1/m     | [w] bias          |
| the same before a tied head                        | 1/m        | 1/m     | 1       | [w] output, tied  |

[w] Yang et al. 2022, arXiv 2203.03466, table 3, columns of Adam. For a tied head table 8; its factor 1/m on logits is
    in the last norm here. Its attention by 1 / head_dim differs from ours by a constant, since width grows by heads.
[d] Dey et al. 2025, arXiv 2505.01618, table 1, alpha = 1: what a block adds is divided by l. The division is in the
    weights: for an optimizer that does not see the scale of gradients, a factor c on what a weight does is c times its
    initial values and rate, and 1/c times its eps. So models compute, and are exported, as without a parametrization.
eps The same table: times 1/m, in blocks 1/(m l), and then 1/c. Its rates of norms and biases in blocks have the factor
    l^(alpha - 1) = 1. Its decay is m times stronger where the rate is 1/m, so that a step decays a weight as in the
    base model; `danalab.optim.optimizers.groups.apply_factors` does this. Base sizes of 256 and 2 are its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from danalab.errors import UserError, nearest
from danalab.scaling.shape import Shape, linear_attention, sparsity

PARAMETRIZATIONS = ("standard", "mup", "completep")
BASE_D_MODEL, BASE_N_LAYERS = 256, 2


@dataclass(frozen=True, kw_only=True)
class Parametrized(Shape):
    """A shape with a parametrization, which leaves the function of its weights as it is."""

    parametrization: str = "standard"
    base_d_model: int | None = None
    """Width at which mup and completep are the same as standard; None: 256."""
    base_n_layers: int | None = None
    """Layers at which completep is the same as mup; None: 2."""


@dataclass(frozen=True)
class Factors:
    """The factors of one weight."""

    std: float = 1.0
    """Factor on the standard deviation, or on the value of a gain, that it has in the base model."""
    rate: float = 1.0
    eps: float = 1.0


def base_sizes(config: Parametrized) -> tuple[int | None, int | None]:
    """(width, layers) of the base model, defaults filled in; None where the parametrization has none.

    UserError: no such parametrization, a base size that it does not use, or layers for which no rule is known.
    """
    name, width, layers = config.parametrization, config.base_d_model, config.base_n_layers
    if name not in PARAMETRIZATIONS:
        known = f"{nearest(name, PARAMETRIZATIONS)}; known: {', '.join(PARAMETRIZATIONS)}"
        raise UserError(f"unknown parametrization '{name}'{known}")
    given = (("base_d_model", width, name == "standard"), ("base_n_layers", layers, name != "completep"))
    for size, value, unused in given:
        if value is not None and (unused or value < 1):
            what = f"parametrization {name} does not use it; leave it out" if unused else "must be at least 1"
            raise UserError(f"{size} {value}: {what}")
    if name == "standard":
        return None, None
    unknown = "oscillators" if config.architecture.oscillators else "experts" if sparsity(config) else ""
    unknown = unknown or ("the delta rule" if linear_attention(config) else "")
    if unknown:
        raise UserError(f"parametrization {name}: no rule is known for {unknown}; use standard")
    return width or BASE_D_MODEL, (layers or BASE_N_LAYERS) if name == "completep" else None


def multiples(d_model: int, n_layers: int, base_d_model: int | None, base_n_layers: int | None) -> tuple[float, float]:
    """(m, l): width and depth over those of the base model; 1 where there is none."""
    return d_model / (base_d_model or d_model), n_layers / (base_n_layers or n_layers)


def weight_factors(config: Parametrized, roles: Mapping[str, str]) -> dict[str, Factors]:
    """Parameter name -> factors of the table above; `roles`: parameter name -> role (`danalab.models.init`)."""
    m, n = multiples(config.d_model, config.n_layers, config.base_d_model, config.base_n_layers)
    with_eps = config.parametrization == "completep"
    factors = {}
    for name, role in roles.items():
        writes = roles.get(f"{name.rpartition('.')[0]}.weight") == "residual"
        c = 1 / n if writes else 1.0
        if role == "head" or (config.tied and name.startswith("final_norm.")):
            c, std, rate = 1 / m, 1 / m, 1 / m
        elif role in ("linear", "residual"):
            std, rate = m**-0.5 * c, c / m
        else:
            std, rate = 1.0, c
        eps = 1 / (m * (n if name.startswith("blocks.") else 1) * c) if with_eps else 1.0
        factors[name] = Factors(std, rate, eps)
    return factors

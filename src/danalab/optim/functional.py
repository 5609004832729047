"""The updates of the element-wise rules as pure functions of tensors, collected from the files of their families."""

from danalab.optim.backends.rounding import stochastic_round
from danalab.optim.core.noise import rounding_seed
from danalab.optim.elementwise.adamw_decaying_wd import adamw_decaying_wd_update
from danalab.optim.elementwise.adana import adana_update
from danalab.optim.elementwise.ademamix import ademamix_update
from danalab.optim.elementwise.auto_dana import auto_dana_update
from danalab.optim.elementwise.dana import dana_update, sign_dana_update
from danalab.optim.elementwise.dana_star import dana_star_update

__all__ = [
    "adamw_decaying_wd_update",
    "adana_update",
    "ademamix_update",
    "auto_dana_update",
    "dana_star_update",
    "dana_update",
    "rounding_seed",
    "sign_dana_update",
    "stochastic_round",
]

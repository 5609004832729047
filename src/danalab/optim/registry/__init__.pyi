from .build import build_optimizer as build_optimizer
from .build import groups_of as groups_of
from .build import list_optimizers as list_optimizers
from .build import optimizer_spec as optimizer_spec
from .build import parameter_groups as parameter_groups
from .build import registered as registered
from .spec import OptimizerSpec as OptimizerSpec
from .spec import Setting as Setting

from .groups import parameter_kinds as parameter_kinds
from .optimizer import DecayingOptimizer as DecayingOptimizer
from .optimizer import ElementwiseOptimizer as ElementwiseOptimizer
from .optimizer import LogTimeOptimizer as LogTimeOptimizer
from .optimizer import RuleOptimizer as RuleOptimizer
from .optimizer import constructor_settings as constructor_settings
from .rule import Rule as Rule
